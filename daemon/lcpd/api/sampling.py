"""The sampling fields of chat and text completions: what each may be, and what is not offered.

One table says it for every field of llama-server's request schema (and a few of OpenAI's and ours); `check` compares a
body with it.  llama-server itself moves a value that is out of range to the nearest one without a word; here that is an
error that names the field, as one of the wrong type is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from lcpd.api.errors import bad_request
from lcpd.engine.protocol import RANDOM_SEED

Json = dict[str, Any]
MAX_CHOICES = 16
_INT = 2**31 - 1


@dataclass(frozen=True)
class Number:
    """A number between `low` and `high`, both included."""

    low: float
    high: float

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, in words that follow the field's name; None if nothing is."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return f"must be a number {self.range}, not {_shown(value)}"
        return None if self.low <= value <= self.high else f"must be {self.range}, not {_shown(value)}"

    @property
    def range(self) -> str:
        """The range in words."""
        return f"between {self.low:.15g} and {self.high:.15g}"


@dataclass(frozen=True)
class Whole:
    """A whole number between `low` and `high`, both included."""

    low: int
    high: int = _INT

    def problem(self, value: Any) -> str | None:
        """As in `Number`."""
        if isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high:
            return None
        return f"must be a whole number {self.range}, not {_shown(value)}"

    @property
    def range(self) -> str:
        """The range in words."""
        return f"between {self.low} and {self.high}"


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def problem(self, value: Any) -> str | None:
        """As in `Number`."""
        return None if isinstance(value, bool) else f"must be true or false, not {_shown(value)}"


@dataclass(frozen=True)
class Only:
    """A field that is not offered: only values that ask for nothing are taken."""

    values: tuple[Any, ...]
    reason: str

    def problem(self, value: Any) -> str | None:
        """As in `Number`."""
        same = any(value == known and isinstance(value, bool) == isinstance(known, bool) for known in self.values)
        return None if same else f"is not offered: {self.reason}"


@dataclass(frozen=True)
class By:
    """A field of a shape of its own."""

    problem: Callable[[Any], str | None]


Rule = Number | Whole | Flag | Only | By

# Names as llama.cpp takes them: canonical ones, and its other spellings of them.
SAMPLERS = ("dry", "top_k", "typ_p", "top_p", "top_n_sigma", "min_p", "temperature", "xtc", "penalties", "adaptive_p")
_SAMPLER_NAMES = {spelling for name in SAMPLERS for spelling in (name, name.replace("_", "-"), name.replace("_", ""))}
_SAMPLER_NAMES |= {"nucleus", "temp", "typ"}
SAMPLER_LETTERS = "dkypsmtxea"
_TOP_K = {"top_k", "top-k", "topk", "k"}
_MAX_SAMPLERS = 32
_MAX_BIASES = 10_000
_BIAS = Number(-10_000, 10_000)
_MAX_BREAKERS = 64


def _stop(value: Any) -> str | None:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or len(texts) > 256 or not all(isinstance(text, str) for text in texts):
        return "must be a string or a list of at most 256 strings"
    return None


def problem_with_samplers(value: Any, infill: bool = False) -> str | None:
    """What is wrong with a list or string of samplers, as in `Number`; `infill`: whether that one may follow top_k."""
    names = list(value) if isinstance(value, str | list) else None
    if names is None or not all(isinstance(name, str) for name in names) or len(names) > _MAX_SAMPLERS:
        return f"must be a list of at most {_MAX_SAMPLERS} names, or a string of letters"
    known = SAMPLER_LETTERS if isinstance(value, str) else _SAMPLER_NAMES
    cut = False
    for name in names:
        if name.lower() in ("infill", "i"):
            if infill and cut:
                continue
            return f"cannot have infill{' before top_k' * infill}: its time grows with the square of the vocabulary"
        cut = cut or name.lower() in _TOP_K
        if (name if isinstance(value, str) else name.lower()) not in known:
            offered = f"the letters {SAMPLER_LETTERS}" if isinstance(value, str) else ", ".join(SAMPLERS)
            return f"has no sampler {_shown(name)}; there are {offered}"
    return None


def _logit_bias(value: Any) -> str | None:
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list) and all(isinstance(item, list) and len(item) == 2 for item in value):
        pairs = [(item[0], item[1]) for item in value]
    else:
        return "must be an object of token: bias, or a list of [token, bias] pairs"
    if len(pairs) > _MAX_BIASES:
        return f"must have at most {_MAX_BIASES} entries, not {len(pairs)}"
    for token, bias in pairs:
        if isinstance(token, bool) or not isinstance(token, int | str):
            return f"must have token ids or texts, not {_shown(token)}"
        if bias is not False and _BIAS.problem(bias):
            return f"must have biases {_BIAS.range}, or false to ban a token, not {_shown(bias)}"
    return None


def _breakers(value: Any) -> str | None:
    fits = isinstance(value, list) and 1 <= len(value) <= _MAX_BREAKERS and all(isinstance(v, str) and v for v in value)
    return None if fits else f"must be a list of 1 to {_MAX_BREAKERS} strings, none of them empty"


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else f"must be a string, not {_shown(value)}"


def _schema(value: Any) -> str | None:
    return None if isinstance(value, dict) else f"must be a JSON schema (an object), not {_shown(value)}"


def _response_format(value: Any) -> str | None:
    kinds = ("text", "json_object", "json_schema")
    if not isinstance(value, dict) or value.get("type", "text") not in kinds:
        return f"must be an object whose type is one of {', '.join(kinds)}"
    # llama.cpp would take "any object" for a schema that it does not find.
    if value.get("type") == "json_schema":
        wrapper = value.get("json_schema")
        if not isinstance(wrapper, dict) or not isinstance(wrapper.get("schema"), dict):
            return 'of type json_schema needs its schema as {"json_schema": {"schema": {...}}}'
    elif value.get("type") == "json_object" and not isinstance(value.get("schema", {}), dict | None):
        return "of type json_object has a schema that is no object"
    return None


_INTERNAL = "the chat template decides it"
_NO_SHIFT = "the context is never shifted; a reply ends where the context is full"

RULES: dict[str, Rule] = {
    # how long
    "max_tokens": Whole(-1),
    "max_completion_tokens": Whole(-1),
    "n_predict": Whole(-1),
    "min_tokens": Whole(0),
    "stop": By(_stop),
    "ignore_eos": Flag(),
    # how many, and what they tell
    "n": Whole(1, MAX_CHOICES),
    "n_cmpl": Whole(1, MAX_CHOICES),
    "best_of": Whole(1, MAX_CHOICES),
    "n_probs": Whole(0, 100),
    "top_logprobs": Whole(0, 20),
    "post_sampling_probs": Flag(),
    # how to sample
    "temperature": Number(0, 100),
    "dynatemp_range": Number(0, 100),
    "dynatemp_exponent": Number(0, 100),
    "top_k": Whole(-1),
    "top_p": Number(0, 1),
    "min_p": Number(0, 1),
    "typical_p": Number(0, 1),
    "top_n_sigma": Number(-1, 100),
    "xtc_probability": Number(0, 1),
    "xtc_threshold": Number(0, 1),
    "repeat_last_n": Whole(0, 2**20),
    "repeat_penalty": Number(0.01, 100),
    "frequency_penalty": Number(-2, 2),
    "presence_penalty": Number(-2, 2),
    "dry_multiplier": Number(0, 100),
    "dry_base": Number(1, 100),
    "dry_allowed_length": Whole(0),
    "dry_penalty_last_n": Whole(0, 2**20),
    "dry_sequence_breakers": By(_breakers),
    "mirostat": Whole(0, 2),
    "mirostat_tau": Number(0, 100),
    "mirostat_eta": Number(0, 100),
    "adaptive_target": Number(-1, 1),
    "adaptive_decay": Number(0, 0.99),
    "min_keep": Whole(0),
    "samplers": By(problem_with_samplers),
    "seed": Whole(-(2**63), 2**63 - 1),
    "logit_bias": By(_logit_bias),
    # what the reply must look like
    "grammar": By(_text),
    "json_schema": By(_schema),
    "response_format": By(_response_format),
    # reasoning and templates
    "reasoning_budget_tokens": Whole(-1),
    "thinking_budget_tokens": Whole(-1),
    "reasoning_budget_message": By(_text),
    "reasoning_control": Flag(),
    "parallel_tool_calls": Flag(),
    "add_generation_prompt": Flag(),
    # not offered
    "n_keep": Only((0,), _NO_SHIFT),
    "n_discard": Only((0,), _NO_SHIFT),
    "n_indent": Only((0,), "say it in the prompt or with a grammar"),
    "t_max_predict_ms": Only((-1, 0), "use max_tokens, or close the connection"),
    "id_slot": Only((-1,), "the slot that holds most of the prompt is taken"),
    "lora": Only(([],), "adapters cannot be chosen for a request"),
    "echo": Only((False,), "the prompt is known to who sent it"),
    "suffix": Only(("",), "text is only added at the end"),
    "grammar_lazy": Only((False,), _INTERNAL),
    "grammar_triggers": Only(([],), _INTERNAL),
    "grammar_type": Only(("",), _INTERNAL),
    "preserved_tokens": Only(([],), _INTERNAL),
    "generation_prompt": Only(("",), _INTERNAL),
    "chat_format": Only((), _INTERNAL),
    "chat_parser": Only(("",), _INTERNAL),
    "message_delimiters": Only(([],), _INTERNAL),
    "parse_tool_calls": Only((), _INTERNAL),
    "reasoning_budget_start_tag": Only((), _INTERNAL),
    "reasoning_budget_end_tag": Only((), _INTERNAL),
    "reasoning_budget_end_tags": Only((), _INTERNAL),
}

NO_EFFECT = frozenset(
    {
        "backend_sampling",
        "cache_prompt",
        "n_cache_reuse",
        "response_fields",
        "return_progress",
        "return_tokens",
        "sse_ping_interval",
        "timings_per_token",
        "verbose",
    }
)
"""llama-server's fields that are taken and change nothing here (docs/api.md says why); not passed on."""

_OURS = frozenset({"n", "n_cmpl", "best_of", "logprobs", "top_logprobs", "n_probs", "min_tokens", "priority"})
"""Fields that are worked on here and not passed on as they are."""
_SHAPES = ("grammar", "json_schema", "response_format")


def check(plain: Json, more: Mapping[str, Rule]) -> None:
    """Raise ApiError for the first sampling field of a body that cannot be; null counts as absent.

    `more`: fields that mean different things in chats and text completions.
    """
    for name, rule in {**RULES, **more}.items():
        if (value := plain.get(name)) is not None and (problem := rule.problem(value)):
            raise bad_request(f"{name} {problem}.", name)
    shapes = [name for name in _SHAPES if _asks_for_a_shape(name, plain.get(name))]
    if len(shapes) > 1:
        raise bad_request(f"{shapes[0]} and {shapes[1]} cannot both be given: leave one of them out.", shapes[1])
    limit = next((plain[name] for name in ("n_predict", "max_completion_tokens", "max_tokens") if plain.get(name)), -1)
    if (least := plain.get("min_tokens")) and 0 < limit < least:
        raise bad_request(f"min_tokens must be at most max_tokens ({limit}), not {least}.", "min_tokens")
    if (best_of := plain.get("best_of")) and best_of != choices(plain):
        raise bad_request("best_of must equal n: all replies are returned.", "best_of")


def _asks_for_a_shape(name: str, value: Any) -> bool:
    if name == "response_format":
        return value is not None and value.get("type", "text") != "text"
    return value is not None and value != ""


def choices(plain: Json) -> int:
    """How many replies a checked body asks for."""
    return plain.get("n") or plain.get("n_cmpl") or 1


def engine_fields(plain: Json, n_probs: int) -> Json:
    """What of a checked body is passed on; `n_probs` alternatives are to be told for each token (0: none)."""
    # An empty grammar beside a schema would make llama.cpp ignore both.
    fields = {
        name: value
        for name, value in plain.items()
        if value is not None and name not in _OURS and name not in NO_EFFECT and (name, value) != ("grammar", "")
    }
    if n_probs:
        fields["n_probs"] = n_probs
    return fields


def with_schema(fields: Json) -> Json:
    """The fields of a text completion with response_format as the schema it stands for.

    llama.cpp looks at it in chats only.
    """
    rest = {name: value for name, value in fields.items() if name != "response_format"}
    match fields.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {**rest, "json_schema": schema}
        case {"type": "json_object", **others}:
            return {**rest, "json_schema": others.get("schema") or {"type": "object"}}
    return rest


def for_choice(sampling: bytes, index: int) -> bytes:
    """The engine's fields for the reply `index` of several: a given seed is counted up, as llama-server does."""
    fields = msgspec.json.decode(sampling)
    seed = fields.get("seed")
    if not index or seed is None or seed % 2**32 == RANDOM_SEED:
        return sampling
    return msgspec.json.encode({**fields, "seed": (seed + index) % 2**32})


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
