"""Whatever a client sends, it gets an error that names the field, never a 500, and the daemon goes on."""

from __future__ import annotations

import http.server
import json
import os
import random
import threading

import httpx
import pytest

pytestmark = pytest.mark.native

HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT, CLAUDE = "/v1/chat/completions", "/v1/completions", "/v1/messages"


def post(daemon, path, body, **headers):
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    return httpx.post(
        daemon.url + path, content=data, headers={"Content-Type": "application/json", **headers}, timeout=60
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        (CHAT, "{", 400, None),
        (CHAT, "", 400, None),
        (CHAT, "[]", 400, None),
        (CHAT, "null", 400, None),
        (CHAT, b'{"messages": "\xff\xfe"}', 400, None),
        (CHAT, {}, 400, "messages"),
        (CHAT, {"messages": []}, 400, "messages"),
        (CHAT, {"messages": "hi"}, 400, "messages"),
        (CHAT, {"messages": [1]}, 400, "messages[0]"),
        (CHAT, {"messages": [{"content": "hi"}]}, 400, "messages[0].role"),
        (CHAT, {"messages": [{"role": "king", "content": "hi"}]}, 400, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
        (CHAT, {"messages": [{"role": "user"}]}, 400, "messages"),
        (CHAT, {"messages": HI, "model": "gpt-4"}, 404, "model"),
        (CHAT, {"messages": HI, "model": 4}, 400, "model"),
        (CHAT, {"messages": HI, "max_tokens": 0}, 400, "max_tokens"),
        (CHAT, {"messages": HI, "n_predict": 0}, 400, "max_tokens"),
        (CHAT, {"messages": HI, "max_tokens": -2}, 400, "max_tokens"),
        (CHAT, {"messages": HI, "samplers": ["infill"]}, 400, "samplers"),
        (CHAT, {"messages": HI, "samplers": "ki"}, 400, "samplers"),
        (CHAT, {"messages": HI, "repeat_last_n": 10**8}, 400, "repeat_last_n"),
        (CHAT, {"messages": HI, "stop": ["x"] * 1000}, 400, "stop"),
        (CHAT, {"messages": HI, "min_keep": -1}, 400, "min_keep"),
        (TEXT, {"prompt": "x", "grammar": 'root ::= "ab"', "ignore_eos": True, "temperature": 0}, 400, "grammar"),
        (TEXT, {"prompt": [10**30]}, 400, "prompt[0]"),
        (CHAT, {"messages": HI, "max_tokens": "many"}, 400, "max_tokens"),
        (CHAT, {"messages": HI, "temperature": -1}, 400, "temperature"),
        (CHAT, {"messages": HI, "temperature": "hot"}, 400, "temperature"),
        (CHAT, {"messages": HI, "top_p": 1.5}, 400, "top_p"),
        (CHAT, {"messages": HI, "temperature": 101}, 400, "temperature"),
        (CHAT, {"messages": HI, "n": 0}, 400, "n"),
        (CHAT, {"messages": HI, "n": 17}, 400, "n"),
        (CHAT, {"messages": HI, "n": 2, "best_of": 3}, 400, "best_of"),
        (CHAT, {"messages": HI, "min_tokens": 9, "max_tokens": 8}, 400, "min_tokens"),
        (CHAT, {"messages": HI, "mirostat": 3}, 400, "mirostat"),
        (CHAT, {"messages": HI, "dry_base": 0}, 400, "dry_base"),
        (CHAT, {"messages": HI, "samplers": ["magic"]}, 400, "samplers"),
        (CHAT, {"messages": HI, "logit_bias": {"999999": 1}}, 400, "logit_bias"),
        (TEXT, {"prompt": "x", "logit_bias": [[5, "much"]]}, 400, "logit_bias"),
        (CHAT, {"messages": HI, "n_keep": 5}, 400, "n_keep"),
        (TEXT, {"prompt": "x", "id_slot": 1}, 400, "id_slot"),
        (TEXT, {"prompt": "x", "grammar_lazy": True, "grammar": 'root ::= "a"'}, 400, "grammar_lazy"),
        (CHAT, {"messages": HI, "priority": "urgent"}, 400, "priority"),
        (CHAT, {"messages": HI, "stream": "yes"}, 400, "stream"),
        (CHAT, {"messages": HI, "stop": 7}, 400, "stop"),
        (CHAT, {"messages": HI, "logprobs": 5}, 400, "logprobs"),
        (CHAT, {"messages": HI, "top_logprobs": 5}, 400, "top_logprobs"),
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, 400, "top_logprobs"),
        (TEXT, {"prompt": "x", "logprobs": 21}, 400, "logprobs"),
        (CHAT, {"messages": HI, "tools": "read_file"}, 400, "tools"),
        (CHAT, {"messages": HI, "tools": [{"type": "function", "function": {}}]}, 400, "tools[0].function.name"),
        (CHAT, {"messages": HI, "tool_choice": "maybe"}, 400, "tool_choice"),
        (CHAT, {"messages": HI, "response_format": {"type": "yaml"}}, 400, "response_format"),
        (CHAT, {"messages": HI, "grammar": "root ::= ("}, 400, "grammar"),
        (CHAT, {"messages": HI, "grammar": 5}, 400, "grammar"),
        (TEXT, {}, 400, "prompt"),
        (TEXT, {"prompt": 5}, 400, "prompt"),
        (TEXT, {"prompt": []}, 400, "prompt"),
        (TEXT, {"prompt": [1, ["b"]]}, 400, "prompt"),
        (TEXT, {"prompt": ["a", ""]}, 400, "prompt"),
        (TEXT, {"prompt": ["a"] * 17}, 400, "prompt"),
        (TEXT, {"prompt": [[999_999], "b"]}, 400, "prompt"),
        (TEXT, {"prompt": [999_999]}, 400, "prompt"),
        (TEXT, {"prompt": ""}, 400, "prompt"),
        (TEXT, {"prompt": "x", "echo": True}, 400, "echo"),
        (TEXT, {"prompt": "x", "suffix": "y"}, 400, "suffix"),
    ],
)
def test_bad_openai_bodies(daemon, path, body, status, param):
    response = post(daemon, path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param), error
    assert error["message"]


SCHEMAS = {
    "nonsense": {"type": "nonsense"},
    "reference": {"$ref": "#/nowhere"},
    "keyword": {"type": "object", "properties": {"a": {"not": {}}}},
    "number": {"type": "object", "properties": {"a": {"type": "number", "maximum": 1}}},
    "pattern": {"type": "string", "pattern": "^(a$"},
    "unanchored": {"type": "string", "pattern": "a"},
}
SHAPES = [
    *({"grammar": text} for text in ("root ::= (", "root ::= missing", 'start ::= "a"', "%llguidance {}")),
    *({"json_schema": schema} for schema in SCHEMAS.values()),
    *({"response_format": {"type": "json_schema", "json_schema": {"schema": s}}} for s in SCHEMAS.values()),
    {"response_format": {"type": "json_object", "schema": SCHEMAS["nonsense"]}},
    {"response_format": {"type": "json_schema", "schema": {"type": "object"}}},
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "base"), [(CHAT, {"messages": HI}), (TEXT, {"prompt": "x"})], ids=["chat", "text"])
def test_a_shape_that_cannot_be_obeyed_is_refused_before_the_headers(daemon, path, base, stream):
    for shape in SHAPES:
        response = post(daemon, path, {**base, **shape, "stream": stream, "max_tokens": 4})
        assert response.status_code == 400, (shape, response.text)
        assert response.json()["error"]["param"] == next(iter(shape)), (shape, response.text)


@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": 'root ::= "to be kept out" (' + ' "of the log"' * 1000},
        {"grammar": 'root ::= "to be kept out" missing'},
        {"tools": [{"type": "function", "function": {"name": "t", "parameters": {"type": "to be kept out"}}}]},
        {"json_schema": {"type": "array", "items": {"const": "to be kept out"}, "minItems": 3000}},
    ],
    ids=["grammar", "rule", "tools", "schema"],
)
def test_what_cannot_be_obeyed_is_not_in_the_log(daemon, fields):
    assert post(daemon, CHAT, {"messages": HI, **fields}).status_code == 400
    assert "kept out" not in daemon.log
    assert "of the log" not in daemon.log


@pytest.mark.parametrize(
    "shape",
    [
        {"grammar": 'root ::= "yes" | "no"'},
        {"json_schema": {"enum": ["yes", "no"]}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}},
    ],
    ids=lambda shape: next(iter(shape)),
)
def test_a_shape_is_obeyed_in_text_completions(daemon, shape):
    response = post(daemon, TEXT, {"prompt": "Is it?", **shape, "temperature": 1.5, "max_tokens": 20})
    assert response.json()["choices"][0]["text"].strip(' "') in ("yes", "no")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": HI, "max_tokens": -5}, "max_tokens"),
        ({"messages": HI, "tools": [{"description": "nameless"}]}, "tools[0].name"),
        ({"messages": HI, "system": 3}, "system"),
    ],
)
@pytest.mark.parametrize("path", [CLAUDE, CLAUDE + "/count_tokens"])
def test_bad_anthropic_bodies(daemon, path, body, words):
    response = post(daemon, path, body)
    assert response.status_code == 400
    assert response.json()["type"] == "error"
    assert words in response.json()["error"]["message"]


def test_a_grammar_that_takes_for_ever_is_given_up_and_the_engine_does_not_notice(start_daemon):
    daemon = start_daemon("--model", "demo:smollm2", LCPD_CHAT__CALL_TIMEOUT="3")
    worker = daemon.child("lcpd.engine.worker")
    grammar = "root ::= " + "[a-z]? " * 300
    response = post(daemon, TEXT, {"prompt": "x", "grammar": grammar, "max_tokens": 4})
    assert response.status_code == 400
    assert "chat.call_timeout" in response.json()["error"]["message"]
    assert daemon.child("lcpd.engine.worker") == worker
    assert daemon.chat("hello").status_code == 200


def test_a_sampler_that_fails_ends_its_own_reply_only(daemon):
    replies = []
    bystander = threading.Thread(
        target=lambda: replies.append(
            post(daemon, TEXT, {"prompt": "Read", "max_tokens": 600, "ignore_eos": True, "temperature": 0})
        )
    )
    bystander.start()
    failing = {"prompt": "x", "grammar": 'root ::= "ab"', "ignore_eos": True, "temperature": 0}
    while bystander.is_alive():
        assert post(daemon, TEXT, failing).status_code == 400
    assert replies[0].json()["usage"]["completion_tokens"] == 600


def test_keys_and_encodings_that_are_no_text_are_refused_politely(daemon):
    response = post(daemon, CHAT, {"messages": HI}, **{"Content-Encoding": "gzip"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_json_nested_too_deep_is_refused_before_anything_works_on_it(daemon):
    deep = "[" * 300 + "]" * 300
    tools = '[{"type":"function","function":{"name":"f","parameters":{"x":DEEP}}}]'.replace("DEEP", deep)
    schema = '{"messages":[{"role":"user","content":"x"}],"tools":TOOLS}'.replace("TOOLS", tools)
    pid = daemon.child("lcpd.chat.service")
    response = post(daemon, CHAT, schema)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "200 levels" in response.json()["error"]["message"]
    bottomless = '{"messages":' + "[" * 500_000 + "]" * 500_000 + "}"
    assert post(daemon, CHAT, bottomless).status_code == 400
    assert daemon.child("lcpd.chat.service") == pid


def test_a_body_of_another_type_is_refused(daemon):
    # A page in a browser can send text/plain anywhere without asking first; it cannot send JSON.
    response = post(daemon, CHAT, {"messages": HI}, **{"Content-Type": "text/plain"})
    assert (response.status_code, response.json()["error"]["param"]) == (415, "Content-Type")


def test_a_body_over_the_limit_is_refused(start_daemon):
    daemon = start_daemon(LCPD_SERVER__MAX_BODY="2KiB")
    response = post(daemon, CHAT, {"messages": [{"role": "user", "content": "x" * 4000}]})
    assert response.status_code == 413
    assert "server.max_body" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", CHAT, 405), ("DELETE", "/", 405)]
)
def test_unknown_routes_and_methods(daemon, method, path, status):
    response = httpx.request(method, daemon.url + path)
    assert response.status_code == status
    assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8080"}, 403),
        ({"Host": "localhost"}, 200),
        ({"Host": "127.0.0.1:9"}, 200),
        ({"Host": "[::1]:9"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_foreign_hosts_and_origins_are_refused(daemon, headers, status):
    assert httpx.get(f"{daemon.url}/v1/models", headers=headers).status_code == status


def test_hosts_origins_and_keys_can_be_allowed(start_daemon, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsecret-one\nsecret-two\n")
    daemon = start_daemon(
        "--api-key-file", str(keys), LCPD_SERVER__ALLOWED_HOSTS="box.lan", LCPD_SERVER__ALLOWED_ORIGINS="https://ui.lan"
    )
    url = f"{daemon.url}/v1/models"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": b"Bearer \xe9\xff"}).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer secret-one", "Host": "box.lan"}).status_code == 200
    answer = httpx.get(url, headers={"x-api-key": "secret-two", "Origin": "https://ui.lan"})
    assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.lan"
    assert httpx.options(url, headers={"Origin": "https://ui.lan"}).status_code == 204
    assert httpx.get(f"{daemon.url}/health").status_code == 200


@pytest.mark.parametrize(("flags", "starts"), [((), False), (("--insecure",), True)])
def test_other_machines_are_answered_without_a_key_only_if_that_is_meant(start_daemon, flags, starts):
    daemon = start_daemon("--host", "0.0.0.0", *flags, wait="ok" if starts else None)
    if not starts:
        assert daemon.process.wait(timeout=60) == 2
        assert "server.host" in daemon.log and "--insecure" in daemon.log


class Visits(http.server.BaseHTTPRequestHandler):
    """A server of this machine that nobody is to ask for anything."""

    seen: list[str]

    def do_GET(self):
        self.seen.append(self.path)
        self.send_error(404)

    do_POST = do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass


@pytest.fixture
def visits():
    """The URL of such a server, and which paths it was asked for."""
    handler = type("Handler", (Visits,), {"seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.seen
        server.shutdown()


def test_no_route_fetches_or_opens_what_a_body_names(daemon, visits, tmp_path):
    url, seen = visits
    file = tmp_path / "secret.txt"
    file.write_text("correcthorsebattery")
    named = [f"{url}/x.png", f"file://{file}", str(file), os.path.relpath(file)]
    parts = [
        lambda name: {"type": "image_url", "image_url": {"url": name}},
        lambda name: {"type": "image_url", "image_url": name},
        lambda name: {"type": "input_image", "image_url": name},
        lambda name: {"type": "image", "source": {"type": "url", "url": name}},
        lambda name: {"type": "document", "source": {"type": "url", "url": name}},
        lambda name: {"type": "file", "file": {"file_id": name, "file_url": name}},
        lambda name: {"type": "input_file", "file_url": name},
        lambda name: {"type": "input_audio", "input_audio": {"url": name}},
        lambda name: {"type": "video_url", "video_url": {"url": name}},
    ]
    chats = (CHAT, CLAUDE, f"{CLAUDE}/count_tokens", "/v1/responses", "/v1/responses/input_tokens", "/apply-template")
    for name in named:
        for path in chats:
            for part in parts:
                for role in ("user", "tool") if path == CHAT else ("user",):
                    message = {
                        "role": role,
                        "content": [{"type": "text", "text": "x"}, part(name)],
                        "tool_call_id": "c",
                    }
                    body = {"messages": [message], "input": [message], "max_tokens": 1}
                    response = post(daemon, path, body)
                    assert response.status_code == (200 if role == "tool" else 400), (path, body, response.text)
                    assert "correcthorse" not in response.text
        elsewhere = dict.fromkeys(("grammar_file", "chat_template", "chat_template_file", "lora_path", "user"), name)
        for path, body in ((TEXT, {"prompt": name}), (CHAT, {"messages": HI}), ("/tokenize", {"content": name})):
            response = post(daemon, path, {**body, **elsewhere, "max_tokens": 1})
            assert response.status_code == 200 and "correcthorse" not in response.text
        assert post(daemon, CHAT, {"messages": HI, "model": name}).status_code == 404
    assert seen == []


def test_a_body_cannot_bring_a_template_along(daemon):
    plain = post(daemon, "/apply-template", {"messages": HI}).json()
    for field in ("chat_template", "template", "chat_template_jinja"):
        for more in ({field: "{{ 7 * 6 }}"}, {"chat_template_kwargs": {field: "{{ 7 * 6 }}"}}):
            assert post(daemon, "/apply-template", {"messages": HI, **more}).json() == plain
    told = post(daemon, "/apply-template", {"messages": [{"role": "user", "content": "{{ 7 * 6 }}"}]}).json()["prompt"]
    assert "{{ 7 * 6 }}" in told


def test_random_bodies_never_make_a_500_and_the_daemon_goes_on(daemon):
    rng = random.Random(7)
    values = [None, True, 0, -1, 1e308, "", "x", [], {}, [[]], {"a": [1]}, "\u0000", "<|im_end|>", 2**70]
    fields = [
        "messages", "model", "stream", "temperature", "top_p", "top_k", "max_tokens", "stop", "tools", "tool_choice",
        "response_format", "seed", "logit_bias", "grammar", "json_schema", "stream_options", "samplers", "n_probs",
        "chat_template_kwargs", "reasoning_effort", "add_generation_prompt", "continue_final_message", "min_p",
        "mirostat", "n", "logprobs", "top_logprobs", "min_tokens", "typical_p", "dry_multiplier", "xtc_probability",
        "repeat_penalty", "dynatemp_range", "adaptive_target", "dry_sequence_breakers", "priority", "n_keep", "user",
    ]  # fmt: skip
    statuses = []
    for _ in range(150):
        body = {"messages": HI, "max_tokens": 2}
        for name in rng.sample(fields, rng.randint(1, 4)):
            body[name] = rng.choice(values)
        if rng.random() < 0.3:
            body["messages"] = [
                {"role": rng.choice(["user", "assistant", "tool", "system"]), "content": rng.choice(values)}
            ]
        response = post(daemon, rng.choice([CHAT, TEXT, CLAUDE]), body | {"stream": False, "prompt": "hi"})
        statuses.append(response.status_code)
        assert response.status_code < 500, (body, response.text)
    assert {200, 400} <= set(statuses)
    assert daemon.chat("Read the file a.py").status_code == 200
    assert daemon.health()["restarts"] == 0
