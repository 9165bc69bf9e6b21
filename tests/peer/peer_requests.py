"""The requests on which the whole API is compared with llama-server's, by the servers' set-up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

Json = dict[str, Any]
CHAT, TEXT, CLAUDE = "/v1/chat/completions", "/v1/completions", "/v1/messages"
COUNT, TEMPLATE = "/v1/messages/count_tokens", "/apply-template"


@dataclass(frozen=True)
class Setup:
    """What both servers run."""

    model: str
    template: str = ""
    """A file of llama.cpp's chat templates; "": the model's own."""


@dataclass(frozen=True)
class Request:
    """One request."""

    name: str
    path: str
    body: Json | bytes | None
    """None: a GET."""
    differs: str = ""
    """Its entry in :data:`peer_differences.DIFFERENCES`; "": both answers are the same."""


SETUPS = {
    "hybrid": Setup("demo:hybrid"),
    "smollm2": Setup("demo:smollm2"),
    "gemma3": Setup("demo:gemma3"),
    "hermes": Setup("demo:hybrid", "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"),
    "llama3": Setup("demo:hybrid", "meta-llama-Llama-3.1-8B-Instruct"),
    "qwen3": Setup("demo:hybrid", "Qwen-Qwen3-0.6B"),
    "deepseek": Setup("demo:hybrid", "deepseek-ai-DeepSeek-V3.1"),
    "mistral": Setup("demo:hybrid", "mistralai-Mistral-Nemo-Instruct-2407"),
    "gpt-oss": Setup("demo:hybrid", "openai-gpt-oss-120b"),
}

GREEDY: Json = {"temperature": 0, "max_tokens": 12}
SEEDED: Json = {"temperature": 0.9, "seed": 7, "max_tokens": 12}


def function(name: str, **properties: str) -> Json:
    """A tool whose arguments are all needed."""
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    parameters["required"] = list(properties)
    return {"name": name, "description": f"Do {name}", "parameters": parameters}


def claude_tool(tool: Json) -> Json:
    """The same in Anthropic's words."""
    return {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}


READ, LIST = function("read_file", path="string"), function("list_files", folder="string", depth="integer")
TOOLS: list[Json] = [{"type": "function", "function": one} for one in (READ, LIST)]
CLAUDE_TOOLS = [claude_tool(one) for one in (READ, LIST)]
PERSON: Json = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def said(*texts: Any, system: Any = None) -> list[Json]:
    """Messages that alternate between user and assistant."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, *({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts))]


def call(number: int, name: str, arguments: str) -> Json:
    """A tool call in a chat's history."""
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def block(text: str) -> Json:
    """A text block."""
    return {"type": "text", "text": text}


ASK = said("Read the file src/cache.py")
USED_TOOL = [
    *ASK,
    {"role": "assistant", "content": None, "tool_calls": [call(1, "read_file", '{"path": "src/cache.py"}')]},
    {"role": "tool", "tool_call_id": "call_1", "content": "def get(key):\n    return 1\n"},
]
USED_TWO = [
    *said("Read a.py and list src"),
    {
        "role": "assistant",
        "content": "I will.",
        "tool_calls": [call(1, "read_file", '{"path":"a.py"}'), call(2, "list_files", '{"folder":"src","depth":1}')],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "x = 1"},
    {"role": "tool", "tool_call_id": "call_2", "content": [block("b.py"), block("c.py")]},
]
CLAUDE_USED = [
    *ASK,
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "The file is small.", "signature": "abc"},
            block("I read it."),
            {"type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {"path": "src/cache.py"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "def get(): pass"}]},
]

PROMPTS: dict[str, list[Json]] = {
    "plain": said("Name three rivers of Europe."),
    "system": said("What is the sea like?", system="You are a pirate."),
    "turns": said("My name is Ada.", "Hello Ada.", "Spell my name."),
    "unicode": said("Translate: Größe, naïve, 你好."),
    "blocks": said([block("Read the file "), block("src/cache.py")]),
    "one-block": said([block("Read the file src/cache.py")], system=[block("Be brief.")]),
    "empty-text": said(""),
    "long": said("The cache keeps what was computed once. " * 40 + "What does it keep?"),
}
MORE_PROMPTS: dict[str, list[Json]] = {
    "two-systems": [{"role": "system", "content": "Be brief."}, *said("Hello", system="Be kind.")],
    "late-system": [*said("Hello", "Hi."), {"role": "system", "content": "Be brief."}, *said("Go on")],
    "developer": [{"role": "developer", "content": "Be brief."}, *said("Hello")],
    "named": [{"role": "user", "name": "Ada", "content": "Hello"}],
    "tool-result": USED_TOOL,
    "tool-results": USED_TWO,
    "reasoning": [*said("Hello"), {"role": "assistant", "content": "Hi.", "reasoning_content": "A greeting."}, *ASK],
}
"""Those that not every template takes; both must refuse them alike, too."""

SAMPLING: dict[str, Json] = {
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.5, "min_keep": 3},
    "min_p": {"min_p": 0.3, "top_k": 0},
    "typical": {"typical_p": 0.4},
    "top_n_sigma": {"top_n_sigma": 0.4},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    "dynatemp": {"dynatemp_range": 0.8, "dynatemp_exponent": 1.4},
    "mirostat": {"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.15},
    "penalties": {"repeat_penalty": 1.3, "repeat_last_n": 32, "frequency_penalty": 0.5, "presence_penalty": -0.3},
    "dry": {"dry_multiplier": 1.5, "dry_base": 2, "dry_allowed_length": 1, "dry_sequence_breakers": ["e"]},
    "adaptive": {"samplers": ["min_p", "adaptive_p"], "adaptive_target": 0.4, "adaptive_decay": 0.8},
    "order": {"samplers": "tkm", "min_p": 0.1, "top_k": 10},
    "bias": {"logit_bias": {"260": 4.5, " the": -2, "281": False}},
    "bias-pairs": {"logit_bias": [[260, 4.5], [" the", False]]},
    "ignore_eos": {"ignore_eos": True},
}
LENGTHS: dict[str, Json] = {
    "max_completion_tokens": {"max_tokens": None, "max_completion_tokens": 3},
    "n_predict": {"max_tokens": None, "n_predict": 4},
    "stop": {"stop": "e"},
    "stops": {"stop": ["ing", "\n", " t"]},
}
SHAPES: dict[str, Json] = {
    "grammar": {"grammar": 'root ::= ("yes" | "no") (", " [a-z]+)*'},
    "json_schema": {"json_schema": PERSON, "max_tokens": 32},
    "format-text": {"response_format": {"type": "text"}},
    "format-object": {"response_format": {"type": "json_object"}, "max_tokens": 16},
    "format-schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}, "max_tokens": 32},
}
REASONING: dict[str, Json] = {
    "no-thinking": {"chat_template_kwargs": {"enable_thinking": False}},
    "thinking": {"chat_template_kwargs": {"enable_thinking": True}},
    "effort-none": {"reasoning_effort": "none"},
    "effort-low": {"reasoning_effort": "low"},
    "format-none": {"reasoning_format": "none"},
    "format-deepseek": {"reasoning_format": "deepseek"},
    "budget-0": {"reasoning_budget_tokens": 0},
    "budget-3": {"thinking_budget_tokens": 3, "reasoning_budget_message": " Enough."},
}
PROBS: dict[str, Json] = {
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "n_probs": {"n_probs": 3},
    "post-sampling": {"n_probs": 3, "post_sampling_probs": True, "top_k": 4, "temperature": 0.9, "seed": 7},
}
TOOL_USE: dict[str, Json] = {
    "auto": {},
    "explicit-auto": {"tool_choice": "auto"},
    "none": {"tool_choice": "none"},
    "required": {"tool_choice": "required"},
    "one-at-a-time": {"parallel_tool_calls": False, "tool_choice": "required"},
    "in-parallel": {"parallel_tool_calls": True},
}


def _chats(setup: str, prompts: Mapping[str, list[Json]], **fields: Any) -> list[Request]:
    return [Request(f"{setup}-chat-{name}", CHAT, {"messages": m, **GREEDY, **fields}) for name, m in prompts.items()]


def _with(base: str, path: str, body: Json, variants: Mapping[str, Json], differs: str = "") -> list[Request]:
    """One request for each variant of a body."""
    return [Request(f"{base}-{name}", path, {**body, **fields}, differs) for name, fields in variants.items()]


def _streamed(requests: list[Request], *names: str) -> list[Request]:
    """The same requests as streams; with usage where the number is even."""
    chosen = [one for one in requests if not names or one.name in names]
    streams = []
    for number, one in enumerate(chosen):
        assert isinstance(one.body, dict)
        usage = {"stream_options": {"include_usage": True}} if number % 2 == 0 and one.path != CLAUDE else {}
        streams.append(Request(f"{one.name}-stream", one.path, {**one.body, "stream": True, **usage}, one.differs))
    return streams


def _hybrid() -> list[Request]:
    """The model that knows tools and reasons: everything."""
    tools = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 64}
    chats = _chats("hybrid", PROMPTS | MORE_PROMPTS)
    sampling = _with("chat", CHAT, {"messages": ASK, **SEEDED}, SAMPLING)
    fields = [
        *_with("chat", CHAT, {"messages": ASK, **GREEDY}, LENGTHS | PROBS),
        *_with("chat-shape", CHAT, {"messages": said("Who is it?"), **GREEDY, **REASONING["no-thinking"]}, SHAPES),
        *_with("chat-reasoning", CHAT, {"messages": ASK, **GREEDY}, REASONING),
        *_with("chat-tools", CHAT, tools, TOOL_USE),
        Request("chat-after-tools", CHAT, {"messages": USED_TOOL, "tools": TOOLS, **GREEDY}),
        Request("chat-no-opening", CHAT, {"messages": ASK, **GREEDY, "add_generation_prompt": False}),
        Request("chat-last-is-assistant", CHAT, {"messages": said("Name a river.", "The river"), **GREEDY}),
    ]
    return [
        *chats,
        *sampling,
        *fields,
        *_streamed([*chats[:3], *fields]),
        *_texts(),
        *_claude(),
        *_extras("hybrid"),
        *_bad(),
        *_otherwise(),
    ]


_FORMATS = ("format-object", "format-schema")


def _texts() -> list[Request]:
    body: Json = {"prompt": "Read the file", **GREEDY}
    whole = [
        *_with("text", TEXT, body, {"plain": {}, **LENGTHS}),
        *_with("text", TEXT, body, {name: fields for name, fields in SHAPES.items() if name not in _FORMATS}),
        *_with("text", TEXT, body, {name: SHAPES[name] for name in _FORMATS}, "text-format"),
        *_with("text-prompt", TEXT, body, {"list": {"prompt": ["Read the file"]}, "tokens": {"prompt": [541, 4035]}}),
        *_with("text-prompt", TEXT, body, {"mixed": {"prompt": [541, " the file", 300]}}),
        Request("text-prompts", TEXT, {**body, "prompt": ["Read it", [541, 4035], ["a", 300]]}, "several-prompts"),
        *_with("text-prompt", TEXT, body, {"special": {"prompt": "<|im_start|>user\nRead the file"}}),
        *_with("text", TEXT, {**body, **SEEDED}, {name: SAMPLING[name] for name in ("top_k", "dry", "bias")}),
        *_with("text", TEXT, body, {"n_probs": PROBS["n_probs"]}),
    ]
    return [*whole, *_streamed(whole, "text-plain", "text-stops", "text-n_probs", "text-json_schema")]


def _claude() -> list[Request]:
    body: Json = {"messages": ASK, **GREEDY}
    tools = {"messages": ASK, "temperature": 0, "max_tokens": 64, "tools": CLAUDE_TOOLS}
    whole = _with(
        "claude",
        CLAUDE,
        body,
        {
            "plain": {},
            "system": {"system": "Be brief."},
            "system-blocks": {"system": [block("Be brief."), {**block("Be kind."), "cache_control": {"type": "x"}}]},
            "blocks": {"messages": said([block("Read the file "), {**block("a.py"), "cache_control": {}}])},
            "sampling": {"temperature": 0, "top_k": 4, "top_p": 0.9, "metadata": {"user_id": "u"}},
            "thinking": {"thinking": {"type": "enabled", "budget_tokens": 1024}},
            "adaptive": {"thinking": {"type": "adaptive"}},
            "budget": {"thinking": {"type": "enabled", "budget_tokens": 3}},
            "history": {"messages": CLAUDE_USED, "tools": CLAUDE_TOOLS},
        },
    )
    calls = _with("claude-tools", CLAUDE, tools, {"auto": {}, "any": {"tool_choice": {"type": "any"}}})
    counts = [Request(f"count-{one.name}", COUNT, one.body) for one in (*whole, calls[0])]
    streams = [replace(one, differs="claude-blocks") for one in _streamed([whole[7], *calls])]
    return [*whole, *calls, *counts, *_streamed([whole[0]]), *streams]


def _extras(setup: str) -> list[Request]:
    """What does not generate."""
    prompts = PROMPTS | MORE_PROMPTS
    contents = ["", "hello world", "naïve 😀 \u4f60\n\tdef f():", ["hello", 5, " world"], "<|im_start|>x<|im_end|>"]
    return [
        *(Request(f"{setup}-template-{name}", TEMPLATE, {"messages": m}) for name, m in prompts.items()),
        Request(f"{setup}-template-tools", TEMPLATE, {"messages": ASK, "tools": TOOLS}),
        Request(f"{setup}-template-no-thinking", TEMPLATE, {"messages": ASK, **REASONING["no-thinking"]}),
        *(Request(f"{setup}-tokenize-{i}", "/tokenize", {"content": c}) for i, c in enumerate(contents)),
        Request(f"{setup}-pieces", "/tokenize", {"content": contents[2], "with_pieces": True, "add_special": True}),
        Request(f"{setup}-no-special", "/tokenize", {"content": contents[4], "parse_special": False}),
        Request(f"{setup}-detokenize", "/detokenize", {"tokens": list(range(5, 300, 7))}),
        Request(f"{setup}-health", "/health", None, "health"),
        Request(f"{setup}-models", "/v1/models", None, "models"),
        Request(f"{setup}-props", "/props", None, "props"),
    ]


_NOT_ALIKE = {
    "malformed": (
        *("no-json", "no-role", "schema", "two-shapes", "tool-kind", "image"),
        *("claude-no-messages", "count-no-messages", "tokenize-number", "detokenize-number"),
    ),
    "unknown-route": ("nowhere",),
}


def _bad() -> list[Request]:
    """What both refuse."""
    hi: Json = {"messages": said("hi"), **GREEDY}
    bodies: dict[str, tuple[str, Json | bytes]] = {
        "no-json": (CHAT, b"{"),
        "array": (CHAT, b"[]"),
        "no-messages": (CHAT, {}),
        "messages-text": (CHAT, {"messages": "hi"}),
        "content-number": (CHAT, {"messages": said(5)}),
        "no-content": (CHAT, {"messages": [{"role": "user"}]}),
        "no-role": (CHAT, {"messages": [{"content": "hi"}]}),
        "format": (CHAT, {**hi, "response_format": {"type": "yaml"}}),
        "grammar": (CHAT, {**hi, "grammar": "root ::= ("}),
        "schema": (CHAT, {**hi, "json_schema": {"type": "nonsense"}}),
        "two-shapes": (CHAT, {**hi, "json_schema": PERSON, "grammar": 'root ::= "a"'}),
        "grammar-and-tools": (CHAT, {**hi, "tools": TOOLS, "grammar": 'root ::= "a"'}),
        "tool-choice": (CHAT, {**hi, "tools": TOOLS, "tool_choice": "maybe"}),
        "tool-kind": (CHAT, {**hi, "tools": [{"type": "function"}]}),
        "top_logprobs": (CHAT, {**hi, "top_logprobs": 3}),
        "thinking-kwarg": (CHAT, {**hi, "chat_template_kwargs": {"enable_thinking": "yes"}}),
        "samplers-empty-breakers": (CHAT, {**hi, "dry_sequence_breakers": []}),
        "lora": (CHAT, {**hi, "lora": "x"}),
        "temperature-text": (CHAT, {**hi, "temperature": "hot"}),
        "min_p-list": (TEXT, {"prompt": "x", "min_p": []}),
        "stream-text": (CHAT, {**hi, "stream": "yes"}),
        "image": (CHAT, {**hi, "messages": said([{"type": "image_url", "image_url": {"url": "http://127.0.0.1/a"}}])}),
        "no-prompt": (TEXT, {"max_tokens": 3}),
        "prompt-number": (TEXT, {"prompt": 5}),
        "prompt-tokens": (TEXT, {"prompt": [10**9], **GREEDY}),
        "text-schema": (TEXT, {"prompt": "x", "json_schema": {"type": "nonsense"}, **GREEDY}),
        "claude-no-messages": (CLAUDE, {"max_tokens": 5}),
        "count-no-messages": (COUNT, {"max_tokens": 5}),
        "tokenize-number": ("/tokenize", {"content": 5}),
        "detokenize-number": ("/detokenize", {"tokens": [-1]}),
        "nowhere": ("/v1/nowhere", {}),
    }
    return [
        Request(f"bad-{name}", path, body, next((d for d, names in _NOT_ALIKE.items() if name in names), ""))
        for name, (path, body) in bodies.items()
    ]


def _otherwise() -> list[Request]:
    """Each with its entry in the table of differences."""
    hi: Json = {"messages": said("hi"), **GREEDY}
    text: Json = {"prompt": "Read the file", **GREEDY}
    tools: Json = {"messages": ASK, "tools": TOOLS, "temperature": 0, "max_tokens": 64}
    claude: Json = {"messages": ASK, "tools": CLAUDE_TOOLS, "temperature": 0, "max_tokens": 64}
    long = "word " * 2500
    named = {"tool_choice": {"type": "function", "function": {"name": "list_files"}}}
    claude_named = {"tool_choice": {"type": "tool", "name": "list_files"}}
    bodies: dict[str, list[tuple[str, Json]]] = {
        "range": [(CHAT, {**hi, "top_p": 1.5}), (CHAT, {**hi, "mirostat": 3}), (TEXT, {**text, "temperature": -1})],
        "no-tokens": [(CHAT, {**hi, "max_tokens": 0})],
        "model": [(CHAT, {**hi, "model": "gpt-4"})],
        "role": [(CHAT, {"messages": [{"role": "king", "content": "hi"}], **GREEDY})],
        "empty": [(CHAT, {"messages": [], **GREEDY}), (TEXT, {**text, "prompt": ""})],
        "too-long": [
            (CHAT, {**hi, "messages": said(long)}),
            (TEXT, {**text, "prompt": long}),
            (CLAUDE, {**claude, "messages": said(long)}),
        ],
        "unused-bias": [(CHAT, {**hi, "logit_bias": {"999999": 1}})],
        "keyword": [(CHAT, {**hi, "json_schema": {"type": "object", "minProperties": 2}})],
        "not-offered": [(CHAT, {**hi, "n_keep": 5}), (TEXT, {**text, "echo": True}), (TEXT, {**text, "id_slot": 0})],
        "named-tool": [(CHAT, {**tools, **named}), (CLAUDE, {**claude, **claude_named})],
        "no-such-tool": [(CHAT, {**tools, "tool_choice": {"type": "function", "function": {"name": "zebra"}}})],
        "claude-no-tool": [(CLAUDE, {**claude, "max_tokens": 24, "tool_choice": {"type": "none"}})],
        "claude-no-thinking": [(CLAUDE, {**claude, "tools": [], "max_tokens": 8, "thinking": {"type": "disabled"}})],
        "claude-stop": [(CLAUDE, {**claude, "tools": [], "stop_sequences": ["e"]})],
        "columns": [(TEXT, {**text, "logprobs": 2})],
        "logprobs-tools-stream": [(CHAT, {**tools, "logprobs": True, "stream": True})],
        "choices": [(CHAT, {**hi, "n": 2}), (TEXT, {**text, "n": 2, "temperature": 0.9, "seed": 7})],
        "nothing-to-tokenise": [("/tokenize", {}), ("/detokenize", {})],
    }  # fmt: skip
    return [
        Request(f"otherwise-{name}-{number}", path, body, name)
        for name, cases in bodies.items()
        for number, (path, body) in enumerate(cases)
    ]


def _small(setup: str) -> list[Request]:
    """A model without tools: the slow ones, so fewer requests."""
    some = {name: PROMPTS[name] for name in ("plain", "system", "turns", "unicode", "blocks")}
    chats = _chats(setup, some)
    shapes = {name: SHAPES[name] for name in ("grammar", "format-schema")}
    fields = _with(f"{setup}-chat", CHAT, {"messages": said("Who is it?"), **GREEDY}, shapes | PROBS)
    return [*chats, *fields, *_streamed([chats[0], fields[-1]]), *_extras(setup)]


_STRANGE = {
    **dict.fromkeys((f"gpt-oss-tools-{name}" for name in ("auto", "none", "in-parallel")), "unreadable"),
    **dict.fromkeys((f"gpt-oss-reasoning-{name}" for name in ("no-thinking", "effort-low")), "unreadable"),
    **dict.fromkeys((f"gpt-oss-tools-required{stream}" for stream in ("", "-stream")), "unread"),
    **dict.fromkeys((f"hermes-tools-{name}" for name in ("auto", "in-parallel")), "begun"),
}
"""How replies differ of a model that never saw the template."""


def _template(setup: str) -> list[Request]:
    """Another template: how it renders, and whether its replies are parsed alike."""
    body = {"messages": ASK, **GREEDY}
    tools = {**body, "tools": TOOLS, "max_tokens": 40}
    some = {name: TOOL_USE[name] for name in ("auto", "none", "required", "in-parallel")}
    calls = _with(f"{setup}-tools", CHAT, tools, some)
    thoughts = _with(
        f"{setup}-reasoning", CHAT, body, {name: REASONING[name] for name in ("no-thinking", "effort-low")}
    )
    templates = [one for one in _extras(setup) if one.path == TEMPLATE]
    streams = _streamed(calls, f"{setup}-tools-required")
    requests = [*templates, *calls, *thoughts, *streams]
    return [replace(one, differs=_STRANGE.get(one.name, "")) for one in requests]


REQUESTS: dict[str, list[Request]] = {
    name: _hybrid() if name == "hybrid" else _template(name) if setup.template else _small(name)
    for name, setup in SETUPS.items()
}
