"""The bridge keeps its contracts: right results, and errors instead of exceptions or aborts for every bad argument."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest

from support import READ_FILE, text_of

pytestmark = pytest.mark.native

CALL = "<tool_call>\n<function=read_file>\n<parameter=path>\nsrc/a.py\n</parameter>\n</function>\n</tool_call>"


@pytest.fixture(scope="module")
def bridge():
    from lcpd.native import bridge

    return bridge


@pytest.fixture(scope="module")
def params(bridge):
    return bridge.Params("--jinja")


@pytest.fixture(scope="module")
def hybrid(models):
    return models("hybrid")


@pytest.fixture(scope="module")
def chat(bridge, params, hybrid):
    return bridge.Chat(params, hybrid.handle)


def render(chat, **body):
    return chat.apply(json.dumps(body).encode())


def request(bridge, params, model, fields):
    return bridge.Request(params, model.handle, json.dumps(fields).encode())


# ---- templates and parsing -------------------------------------------------------------------------------


def test_a_chat_is_rendered_with_its_tools_by_the_models_own_template(chat):
    fields = render(chat, messages=[{"role": "user", "content": "hello"}], tools=[READ_FILE])
    assert "- read_file(path: string): Read a file" in fields["prompt"]
    assert fields["prompt"].endswith("<|im_start|>assistant\n<think>\n")


def test_rendering_returns_neither_the_messages_nor_the_tools(chat):
    fields = render(chat, messages=[{"role": "user", "content": "hello"}], tools=[READ_FILE])
    assert not {"messages", "tools"} & fields.keys()


def test_the_template_tells_what_it_can_do(chat):
    info = chat.info()
    assert info["caps"]["supports_tools"] is True
    assert info["supports_thinking"] is True


def test_a_template_can_be_overridden(bridge, params, hybrid):
    chat = bridge.Chat(params, hybrid.handle, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    assert render(chat, messages=[{"role": "user", "content": "hi"}])["prompt"].startswith("[user]hi")


def test_a_broken_template_is_an_error(bridge, params, hybrid):
    with pytest.raises(bridge.BridgeError):
        bridge.Chat(params, hybrid.handle, "{% for m in messages %}{{ m.content }")


def test_an_anthropic_body_becomes_a_chat_body(bridge):
    body = {
        "system": "Be brief.",
        "max_tokens": 5,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"name": "t", "description": "d", "input_schema": {"type": "object"}}],
    }
    converted = json.loads(bridge.convert("anthropic", json.dumps(body).encode()))
    assert [m["role"] for m in converted["messages"]] == ["system", "user"]
    assert converted["tools"][0]["function"]["name"] == "t"


def test_a_reply_with_a_tool_call_is_parsed(bridge, params, hybrid, chat):
    fields = render(chat, messages=[{"role": "user", "content": "x"}], tools=[READ_FILE])
    message = request(bridge, params, hybrid, fields).parse("I will read it.\n</think>\n\n" + CALL)
    assert message["reasoning_content"].strip() == "I will read it."
    assert message["tool_calls"][0]["function"] == {"name": "read_file", "arguments": '{"path":"src/a.py"}'}


@pytest.mark.parametrize("seed", range(5))
def test_streamed_deltas_add_up_to_the_whole_reply_however_the_text_is_cut(bridge, params, hybrid, chat, seed):
    from lcpd.chat.replies import add_delta

    fields = render(chat, messages=[{"role": "user", "content": "x"}], tools=[READ_FILE])
    whole = request(bridge, params, hybrid, fields)
    text = "I will read it.\n</think>\n\nOf course: ünïcödé.\n\n" + CALL
    stream, built, rng, at = bridge.Stream(whole), {"role": "assistant", "content": None}, random.Random(seed), 0
    message = None
    while at < len(text):
        size = rng.randint(1, 7)
        result = stream.push(text[at : at + size], final=at + size >= len(text))
        at += size
        for delta in result["deltas"]:
            add_delta(built, delta)
        message = result.get("message")
    expected = whole.parse(text)
    assert built["reasoning_content"] == expected["reasoning_content"] == message["reasoning_content"]
    assert built["content"] == expected["content"]
    assert built["tool_calls"][0]["function"] == expected["tool_calls"][0]["function"]


def test_message_spans_cover_the_prompt_in_order(bridge, params, hybrid, chat):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    fields = render(chat, messages=messages)
    tokens = hybrid.tokenize(fields["prompt"], add_special=True, parse_special=True)
    spans = request(bridge, params, hybrid, fields).spans(tokens)
    assert [role for role, _, _ in spans] == ["system", "user", "assistant", "user", "assistant"]
    assert all(begin + size == following for (_, begin, size), (_, following, _) in pairwise(spans))


def test_more_spans_than_the_first_guess_are_all_returned(bridge, params, hybrid, chat):
    messages = [{"role": role, "content": "x"} for _ in range(100) for role in ("user", "assistant")]
    fields = render(chat, messages=[*messages, {"role": "user", "content": "x"}])
    tokens = hybrid.tokenize(fields["prompt"], add_special=True, parse_special=True)
    # (one more than the messages: the beginning of the reply)
    assert len(request(bridge, params, hybrid, fields).spans(tokens)) == 202


# ---- bad arguments ---------------------------------------------------------------------------------------


def test_flags_off_the_allow_list_are_refused(bridge):
    # --help would end the process, --model would open a file.
    for flag in ("--help", "--model", "--hf-repo", "--log-file"):
        with pytest.raises(bridge.BridgeError, match=flag):
            bridge.Params(flag, "x")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"messages": 1}', b'{"messages": [{"role": "user"}]}'])
def test_bodies_that_make_no_sense_are_errors(chat, bridge, body):
    with pytest.raises(bridge.BridgeError):
        chat.apply(body)


@pytest.mark.parametrize("fields", [b"", b"[]", b'{"grammar": "root ::= ("}'])
def test_fields_or_grammars_that_make_no_sense_are_errors(bridge, params, hybrid, fields):
    with pytest.raises(bridge.BridgeError):
        bridge.Sampler(bridge.Request(params, hybrid.handle, fields), hybrid.handle)


def test_sampling_a_row_without_logits_is_an_error_not_an_abort(bridge, params, hybrid, make_context):
    context = make_context(hybrid)
    sampler = bridge.Sampler(request(bridge, params, hybrid, {}), hybrid.handle)
    with pytest.raises(bridge.BridgeError, match="no logits"):
        bridge.step_many([sampler], context.handle, [0])
    tokens = hybrid.tokenize("hello there", True, False)
    context.decode(tokens, np.arange(len(tokens), dtype=np.int32), 0, np.zeros(len(tokens), np.int8))
    with pytest.raises(bridge.BridgeError, match="no logits"):
        bridge.step_many([sampler], context.handle, [5000])


@pytest.mark.parametrize("token", [-1, 4096, 2**31 - 1])
def test_tokens_outside_the_vocabulary_are_errors(bridge, params, hybrid, token):
    sampler = bridge.Sampler(request(bridge, params, hybrid, {}), hybrid.handle)
    with pytest.raises(bridge.BridgeError, match="vocabulary"):
        sampler.accept(token)
    with pytest.raises(bridge.BridgeError, match="vocabulary"):
        sampler.accept_prompt(np.array([1, token], np.int32))


def test_memory_is_pinned_only_where_there_is_a_gpu_for_it(bridge):
    from lcpd.build import require_active

    data = np.zeros(1 << 16, np.uint8)
    pinned = bridge.pin_host(data)
    assert pinned == any(device.startswith("CUDA") for device in require_active().devices)
    if pinned:
        bridge.unpin_host(data)


def test_every_device_computes_a_matrix_product(bridge):
    bridge.selftest_matmul()


# ---- sampling --------------------------------------------------------------------------------------------


def generate(bridge, context, sampler, tokens, count, seq=0):
    """Greedy or sampled continuation of `tokens` on an empty sequence."""
    logits = np.zeros(len(tokens), np.int8)
    logits[-1] = 1
    context.decode(tokens, np.arange(len(tokens), dtype=np.int32), seq, logits)
    out = bridge.step_many([sampler], context.handle, [-1])
    while len(out) < count:
        position = np.array([len(tokens) + len(out) - 1], np.int32)
        context.decode(np.array(out[-1:], np.int32), position, seq, np.ones(1, np.int8))
        out += bridge.step_many([sampler], context.handle, [0])
    return out


def test_temperature_zero_takes_the_most_probable_token(bridge, params, hybrid, make_context):
    context = make_context(hybrid)
    tokens = hybrid.tokenize("Read the file", True, False)
    sampler = bridge.Sampler(request(bridge, params, hybrid, {"temperature": 0}), hybrid.handle)
    first = generate(bridge, context, sampler, tokens, 1)[0]
    assert first == int(context.logits(-1, hybrid.n_vocab).argmax())


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(bridge, params, hybrid, make_context):
    context = make_context(hybrid)
    tokens = hybrid.tokenize(text_of(20), True, False)

    def sample(seed):
        context.clear(0)
        fields = {"temperature": 1.5, "seed": seed, "top_k": 0, "top_p": 1, "min_p": 0}
        return generate(
            bridge, context, bridge.Sampler(request(bridge, params, hybrid, fields), hybrid.handle), tokens, 24
        )

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_a_grammar_is_obeyed(bridge, params, hybrid, make_context):
    context = make_context(hybrid)
    fields = {"temperature": 0, "grammar": 'root ::= "yes" | "no"'}
    sampler = bridge.Sampler(request(bridge, params, hybrid, fields), hybrid.handle)
    out, tokens = [], hybrid.tokenize("Read the file", True, False)
    for token in generate(bridge, context, sampler, tokens, 2):
        out.append(hybrid.piece(token, special=False).decode())
    assert "".join(out) in ("yes", "no", "ye", "n")


def test_drafting_with_verification_gives_the_tokens_of_plain_greedy_decoding(bridge, models, make_context):
    """n-gram speculation: the interface that the worker's place for drafting will use."""
    model = models("attention")
    params = bridge.Params(
        "--jinja", "--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8"
    )
    greedy = request(bridge, params, model, {"temperature": 0})
    prompt = model.tokenize("alpha beta gamma delta epsilon zeta eta theta iota kappa " * 6, True, False)
    context = make_context(model)
    expected = generate(bridge, context, bridge.Sampler(greedy, model.handle), prompt, 40)

    context.clear(0)
    sampler = bridge.Sampler(greedy, model.handle)
    spec = bridge.Speculation(params, model.handle, context.handle, n_seq=1)
    spec.begin(0, prompt)
    out = generate(bridge, context, sampler, prompt, 1)
    added, accepted = np.empty(0, np.int32), 0
    while len(out) < 40:
        base = len(prompt) + len(out) - 1
        draft = spec.draft(0, spec.n_max, base, out[-1], added)
        batch = np.concatenate([np.array(out[-1:], np.int32), draft])
        positions = np.arange(base, base + len(batch), dtype=np.int32)
        context.decode(batch, positions, 0, np.ones(len(batch), np.int8))
        got = bridge.verify(sampler, context.handle, list(range(len(batch))), draft)
        context.truncate(0, base + len(got))
        if len(draft):
            spec.accept(0, len(got) - 1)
        accepted += len(got) - 1
        added = np.array([out[-1], *got[:-1]], np.int32)
        out += got
    assert out[:40] == expected
    assert accepted > 10


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}


def test_samplers_with_grammars_run_at_once_give_the_tokens_that_they_give_alone(bridge, models, make_context):
    model = models("attention")
    params = bridge.Params("--jinja")
    prompts = [model.tokenize(f"Tell me about {what} in JSON:", True, False) for what in ("Rome", "rain", "tea", "C")]
    seeded = [{"temperature": 0.9, "seed": 40 + seq, "json_schema": SCHEMA} for seq in range(4)]
    plain = {"temperature": 0.9, "seed": 7}

    def run(together):
        context = make_context(model, n_seq=5)
        samplers = [bridge.Sampler(request(bridge, params, model, fields), model.handle) for fields in (*seeded, plain)]
        held = [*prompts, prompts[0]]
        for seq, tokens in enumerate(held):
            context.decode(tokens[:-1], list(range(len(tokens) - 1)), seq, 0)
        out = [[int(tokens[-1])] for tokens in held]
        rows = list(range(len(held)))
        for step in range(24):
            # A batch with one token of each sequence, so that all rows are of the same decode.
            positions = [len(tokens) - 1 + step for tokens in held]
            context.decode([tokens[-1] for tokens in out], positions, rows, 1)
            if together:
                sampled = bridge.step_many(samplers, context.handle, rows)
            else:
                sampled = [bridge.step_many([samplers[row]], context.handle, [row])[0] for row in rows]
            for tokens, token in zip(out, sampled, strict=True):
                tokens.append(token)
        return out

    assert run(together=True) == run(together=False)


def test_a_failing_grammar_among_several_yields_minus_one_and_leaves_the_others_alone(bridge, models, make_context):
    model = models("attention")
    params = bridge.Params("--jinja")
    context = make_context(model)
    tokens = model.tokenize("hello there", True, False)
    context.decode(tokens, np.arange(len(tokens), dtype=np.int32), 0, np.eye(len(tokens), dtype=np.int8)[-1])
    failing = {"grammar": 'root ::= "a"', "ignore_eos": True, "temperature": 0}
    samplers = [
        bridge.Sampler(request(bridge, params, model, fields), model.handle)
        for fields in (failing, {"temperature": 0}, failing, {"temperature": 0, "grammar": "root ::= [a-z]+"})
    ]
    first = bridge.step_many(samplers, context.handle, [-1] * 4)
    second = bridge.step_many(samplers, context.handle, [-1] * 4)
    assert -1 not in first
    assert [token == -1 for token in second] == [True, False, True, False]
    assert samplers[0].error()
    assert not samplers[1].error()


def test_the_logarithms_of_probabilities_are_those_of_the_softmax(bridge, params, hybrid, make_context):
    context = make_context(hybrid)
    tokens = hybrid.tokenize("Read the file", True, False)
    sampler = bridge.Sampler(request(bridge, params, hybrid, {"temperature": 0}), hybrid.handle)
    token = generate(bridge, context, sampler, tokens, 1)[0]
    logits = context.logits(-1, hybrid.n_vocab).astype(np.float64)
    expected = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    own, best = sampler.probs(context.handle, -1, token, 5)
    order = np.argsort(-expected)[:5]
    assert [other for other, _ in best] == order.tolist()
    assert np.allclose([p for _, p in best], expected[order], atol=1e-4)
    assert own == best[0][1]


def test_probabilities_are_told_for_unlikely_tokens_and_for_none_of_the_best(bridge, params, hybrid, make_context):
    context = make_context(hybrid)
    tokens = hybrid.tokenize("Read the file", True, False)
    sampler = bridge.Sampler(request(bridge, params, hybrid, {"temperature": 0}), hybrid.handle)
    generate(bridge, context, sampler, tokens, 1)
    unlikely = int(context.logits(-1, hybrid.n_vocab).argmin())
    own, best = sampler.probs(context.handle, -1, unlikely, 0)
    assert best == []
    assert -9999 <= own < -5


def test_probabilities_after_sampling_are_those_that_the_chain_left(bridge, params, hybrid, make_context):
    context = make_context(hybrid)
    tokens = hybrid.tokenize("Read the file", True, False)
    fields = {"temperature": 1, "top_k": 3, "samplers": ["top_k", "temperature"], "seed": 1}
    sampler = bridge.Sampler(request(bridge, params, hybrid, fields), hybrid.handle)
    token = generate(bridge, context, sampler, tokens, 1)[0]
    own, best = sampler.probs(context.handle, -1, token, 10, post=True)
    assert len(best) == 3
    assert np.isclose(sum(np.exp(p) for _, p in best), 1, atol=1e-3)
    assert own in [p for _, p in best]


def test_what_the_worker_needs_of_a_request_is_told(bridge, params, hybrid):
    fields = {"stop": ["a", "b"], "n_predict": 7, "n_probs": 3, "ignore_eos": True}
    info = request(bridge, params, hybrid, fields).info()
    assert {name: info[name] for name in fields} == fields
    assert info["post_sampling_probs"] is False
