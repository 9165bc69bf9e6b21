"""Where lcpd answers otherwise than llama-server, on purpose: each with the reason, as docs/api.md has it."""

from __future__ import annotations

from dataclasses import dataclass

CHAT, TEXT, CLAUDE = "/v1/chat/completions", "/v1/completions", "/v1/messages"


@dataclass(frozen=True)
class Shape:
    """What differs in all good answers of a route.

    Places are such as "choices.*.index"; one with "=null" is meant only where the value is null.
    """

    what: str
    why: str
    path: str = ""
    """"": every route."""
    ours: tuple[str, ...] = ()
    """Places that are not compared in lcpd's answers."""
    theirs: tuple[str, ...] = ()
    """The same in llama-server's."""


@dataclass(frozen=True)
class Difference:
    """What differs for some requests."""

    what: str
    why: str
    ours: int = 200
    """lcpd's status."""
    theirs: int = 200
    places: tuple[str, ...] = ()
    """What is not compared, where both answer well."""


_REPLY = ("content", "usage", "timings", "stop_reason")

SHAPES = (
    Shape(
        "`timings.cache`",
        "llama-server does not tell why a prompt was computed",
        ours=("timings.cache",),
    ),
    Shape(
        "no `system_fingerprint`",
        "OpenAI has deprecated it; `/version` and `/props` tell the build",
        theirs=("system_fingerprint",),
    ),
    Shape(
        "chats: `logprobs` is null where none were asked for",
        "as OpenAI has it",
        CHAT,
        ours=("choices.*.logprobs=null",),
    ),
    Shape(
        "text completions: usage comes in a stream when `stream_options` ask for it, with empty `choices`",
        "as OpenAI has it; llama-server puts it into the last chunk in any case",
        TEXT,
        ours=("usage_alone", "stream_usage"),
        theirs=("usage_alone", "stream_usage"),
    ),
    Shape(
        "messages: `cache_creation_input_tokens`; `timings`; all of the usage in `message_delta`; a `signature` in"
        " thinking blocks and an `input` in those of tools when they begin",
        "as Anthropic has it, and what its clients and SDKs expect",
        CLAUDE,
        ours=(
            "usage.cache_creation_input_tokens",
            "delta_usage.input_tokens",
            "delta_usage.cache_read_input_tokens",
            "delta_usage.cache_creation_input_tokens",
            "start.usage.cache_creation_input_tokens",
            "start.usage.output_tokens",
            "timings",
            "blocks.*.signature",
            "blocks.*.input",
        ),
        theirs=("start.usage.output_tokens",),
    ),
)

DIFFERENCES = {
    "malformed": Difference(
        "a body that is no JSON, or has something of the wrong shape, is a 400",
        "the client is at fault; llama-server answers some of them with 500",
        400,
        500,
    ),
    "range": Difference(
        "a sampling field out of range is a 400 that names it",
        "llama-server takes the nearest value without a word",
        400,
    ),
    "no-tokens": Difference(
        "`max_tokens: 0` is a 400", "there is nothing to answer with; llama-server sends one token", 400
    ),
    "model": Difference("a `model` that is not served is a 404", "llama-server answers with the one it has", 404),
    "role": Difference("a role that nobody knows is a 400", "templates leave such messages out or write nonsense", 400),
    "empty": Difference("a chat without messages and an empty prompt are a 400", "there is nothing to go on with", 400),
    "too-long": Difference(
        "a prompt that does not fit has the code `context_length_exceeded` (messages: the words `prompt is too long`)",
        "clients look for that, and compact; llama-server's `exceed_context_size_error` ends their sessions",
        400,
        400,
        ("type",),
    ),
    "unknown-route": Difference(
        "a route that there is not has the type `invalid_request_error`", "as OpenAI has it", 404, 404, ("type",)
    ),
    "unused-bias": Difference(
        "a `logit_bias` for a token that there is not is a 400", "llama-server leaves it out without a word", 400
    ),
    "keyword": Difference(
        "a schema with a keyword that the grammar cannot express is a 400 that names it",
        "llama-server leaves it out without a word",
        400,
    ),
    "not-offered": Difference(
        "fields that are not offered are a 400",
        "llama-server takes them, and some of them change nothing there either",
        400,
    ),
    "named-tool": Difference(
        "a named `tool_choice` leaves only that tool and requires a call of it",
        "llama-server takes it for `auto`, or for any tool",
        places=("choices", "content", "usage", "timings"),
    ),
    "no-such-tool": Difference("a `tool_choice` that names no tool is a 400", "llama-server takes it for `auto`", 400),
    "claude-no-tool": Difference(
        "messages: `tool_choice` of type `none` means no calls", "llama-server leaves it out", places=_REPLY
    ),
    "claude-no-thinking": Difference(
        "messages: `thinking` of type `disabled` turns reasoning off", "llama-server leaves it out", places=_REPLY
    ),
    "claude-stop": Difference(
        "messages: `stop_reason` is `stop_sequence` where a stop sequence ended the reply",
        "as Anthropic has it; llama-server says `end_turn`",
        places=("stop_reason",),
    ),
    "claude-blocks": Difference(
        "messages: in a stream a block ends before the next one begins",
        "as Anthropic has it; llama-server ends all of them at the end",
        places=("order",),
    ),
    "columns": Difference(
        "text completions: `logprobs` gives OpenAI's columns; `n_probs` gives llama-server's list",
        "OpenAI's SDKs declare them",
        places=("choices.*.logprobs",),
    ),
    "logprobs-tools-stream": Difference(
        "the `logprobs` of a stream with tools are given", "llama-server refuses them", 200, 400
    ),
    "choices": Difference(
        "more replies (`n`) than there are slots are given",
        "replies wait for their turn; llama-server refuses",
        200,
        400,
    ),
    "several-prompts": Difference(
        "the usage of several prompts is that of all of them",
        "llama-server tells that of the first",
        places=("usage", "timings"),
    ),
    "text-format": Difference(
        "text completions obey `response_format`",
        "llama-server leaves it out there",
        places=("choices", "usage", "timings"),
    ),
    "nothing-to-tokenise": Difference(
        "`/tokenize` without `content` and `/detokenize` without `tokens` are a 400", "the field was forgotten", 400
    ),
    "unreadable": Difference(
        "a reply that does not follow the template's format comes as text",
        "llama-server answers 500, after all of it was computed",
        200,
        500,
    ),
    "unread": Difference(
        "a reply of which the parser makes nothing comes as text in a stream, too, and without white space in front",
        "llama-server shows it in whole replies only",
        places=("choices",),
    ),
    "begun": Difference(
        "what the parser passes over, such as the beginning of a call whose name is not there yet, comes as text",
        "llama-server leaves it out without a word",
        places=("choices",),
    ),
    "health": Difference(
        "`/health` tells more",
        "why the engine is not ready, and what it runs on",
        places=("model", "slots", "waiting", "restarts", "chat", "engine"),
    ),
    "models": Difference(
        "`/v1/models` tells the context under the names that clients look for, and limits; not Ollama's list, aliases,"
        " tags and the type of file and vocabulary",
        "nobody was seen to ask for those",
        places=(
            "models",
            "data.*.owned_by",
            "data.*.aliases",
            "data.*.tags",
            "data.*.context_length",
            "data.*.max_model_len",
            "data.*.limits",
            "data.*.meta.ftype",
            "data.*.meta.vocab_type",
        ),
    ),
    "props": Difference(
        "`/props` has no path of the model's file, nothing of a web interface and of media; its settings are all that a"
        " request can set",
        "where files lie is nobody's business",
        places=(
            "cors_proxy_enabled",
            "media_marker",
            "model_ftype",
            "model_path",
            "ui",
            "ui_settings",
            "endpoint_metrics",
            *(
                f"default_generation_settings.params.{name}"
                for name in (
                    "dry_sequence_breakers",
                    "grammar",
                    "grammar_lazy",
                    "grammar_triggers",
                    "logit_bias",
                    "preserved_tokens",
                    "reasoning_format",
                    "stop",
                )
            ),
        ),
    ),
}
