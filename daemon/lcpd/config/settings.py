"""Every setting of lcpd: its name, type, unit, bounds, default and meaning.

The example file, the JSON schema and ``lcpd config show`` are generated from these models, so a setting is
described here and nowhere else.  ``Settings()`` is the defaults; ``lcpd.config.load`` adds the other sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, field_validator
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import ValidationInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from lcpd.config.sizes import LARGEST, Size
from lcpd.models.reference import FORMS

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
Switch = Literal["auto", "on", "off"]

UNQUANTISED_KV: tuple[KvType, ...] = ("f32", "f16", "bf16")


def _split_commas(value: object) -> object:
    """The environment has only strings: ``a,b`` is a list there."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _expand_user(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        # Validators report mistakes as ValueError; this is `~somebody` without such a user.
        raise ValueError(f"must be a path: {error}") from None


StringList = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
FloatList = Annotated[tuple[Annotated[float, Field(ge=0)], ...], BeforeValidator(_split_commas)]
UserPath = Annotated[Path, AfterValidator(_expand_user)]
Seconds = Annotated[float, Field(gt=0, le=86400, json_schema_extra={"unit": "seconds"})]
SecondsOrNever = Annotated[float, Field(ge=0, le=86400, json_schema_extra={"unit": "seconds"})]


def size_field(default: int, *, low: int = 0, high: int = LARGEST, description: str) -> Any:
    """A field for a ``Size`` in bytes, its bounds in the schema too (pydantic leaves them out there)."""
    bounds: dict[str, JsonValue] = {"minimum": low, "maximum": high}
    return Field(default=default, ge=low, le=high, json_schema_extra=bounds, description=description)


class Section(BaseModel):
    """What the sections have in common: they are frozen and refuse keys they do not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_not_a_number(cls, value: object, info: ValidationInfo) -> object:
        # Pydantic reads true as 1, which would turn `slots = true` into one slot.
        field = cls.model_fields[str(info.field_name)]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("must not be true or false")
        return value


class ServerSettings(Section):
    """The HTTP server."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port to listen on; 0 = any free port.")
    api_key_file: UserPath | None = Field(
        default=None,
        examples=["/etc/lcpd/api-keys"],
        description="File with the API keys that clients must send, one a line: KEY, or NAME KEY and limits"
        " (docs/api.md). The variable LCPD_API_KEYS can hold such lines, too. Without either no key is asked for.",
    )
    admin_key_file: UserPath | None = Field(
        default=None,
        examples=["/etc/lcpd/admin-keys"],
        description="File with keys, in the same format, for what shows texts of prompts, changes the prompt cache,"
        " or puts the engine to sleep. They are API keys too. LCPD_ADMIN_KEYS can hold such lines. Without either"
        " nobody may do that.",
    )
    insecure: bool = Field(
        default=False,
        description="Answer other machines without asking for an API key; otherwise a host that they can reach is"
        " refused without api_key_file.",
    )
    allowed_hosts: StringList = Field(
        default=(),
        description="Values of the Host header to accept besides the loopback names and the bind address.",
    )
    allowed_origins: StringList = Field(
        default=(),
        description="Values of the Origin header (of browsers) to accept. Empty: none.",
    )
    max_body: Size = size_field(64 * 2**20, low=1024, high=2**40, description="Largest request body.")
    max_tokens: int = Field(
        default=0,
        ge=0,
        le=2**24,
        json_schema_extra={"unit": "tokens"},
        description="Longest reply; who asks for more, or names no limit, gets so much. 0 = what the context has room"
        " for.",
    )
    heartbeat_interval: Seconds = Field(
        default=5.0,
        description="Time between the signs of life sent on a stream while there is no token to send.",
    )
    drain_timeout: Annotated[float, Field(ge=0, le=86400, json_schema_extra={"unit": "seconds"})] = Field(
        default=30.0, description="Time that running requests get to finish when the daemon is told to stop."
    )
    client_timeout: Seconds = Field(
        default=60.0,
        description="Time a client may take to send its request, or to accept data, before it is dropped.",
    )
    queue_size: int = Field(
        default=64, ge=1, le=65536, description="Requests that may wait for a slot; further ones are refused."
    )
    responses: int = Field(
        default=1000,
        ge=0,
        le=2**20,
        description="Responses kept in memory to be continued with previous_response_id, or fetched; 0 = none.",
    )
    responses_size: Size = size_field(64 * 2**20, description="Memory for them; the least recently used go first.")


class ModelSettings(Section):
    """The model and the context it runs in."""

    ref: str = Field(
        default="demo:hybrid",
        min_length=1,
        description=f"The model: {FORMS}.",
    )
    alias: str | None = Field(
        default=None,
        examples=["local"],
        min_length=1,
        description="Name to show to clients. Unset: derived from the model.",
    )
    ctx: Annotated[int, Field(ge=0, le=2**24)] | Literal["auto"] = Field(
        default=0,
        json_schema_extra={"unit": "tokens"},
        description="Context length, which all slots share: one request may use all of it, and when together they need"
        " more, one is parked. 0 = the model's own limit, but at most 32768; Claude Code and Qwen Code need 49152."
        " auto = the longest one that fits into the free memory with a margin of 256 MiB.",
    )
    slots: int = Field(default=4, ge=1, le=64, description="Sequences that can run at once.")
    kv: KvType | Literal["auto"] = Field(
        default="f16",
        description="Type of the KV cache, used for K and V. The quantised ones need flash attention. auto = the most"
        " exact one from f16 on with which the context fits; with ctx = auto, f16 where the model's whole context fits"
        " with it, else q8_0.",
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="CPU threads to compute with. 0 = the physical cores free to this process, at least 1.",
    )
    gpu_layers: Annotated[int, Field(ge=0, le=9999)] | Literal["auto"] = Field(
        default="auto", description="Layers to put on the GPU. auto = as many as fit."
    )
    flash_attn: Switch = Field(default="auto", description="Flash attention. auto = where the backend supports it.")
    batch: int = Field(
        default=2048,
        ge=1,
        le=2**20,
        json_schema_extra={"unit": "tokens"},
        description="Tokens passed to one decode call at most.",
    )
    ubatch: int = Field(
        default=512,
        ge=1,
        le=2**20,
        json_schema_extra={"unit": "tokens"},
        description="Tokens computed together on the device at most; more than batch is as good as batch.",
    )
    tensor_split: FloatList = Field(
        default=(),
        description="Share of the model for each GPU, as proportions. Empty: by their free memory.",
    )
    main_gpu: int = Field(default=0, ge=0, le=63, description="GPU for what is not split.")
    mmap: bool = Field(default=True, description="Map the model file instead of reading it.")
    mlock: bool = Field(default=False, description="Keep the model's pages from being swapped out.")
    chat_template_file: UserPath | None = Field(
        default=None,
        examples=["/etc/lcpd/template.jinja"],
        description="Jinja chat template to use. Unset: the model's own.",
    )
    checkpoints: int = Field(
        default=8,
        ge=0,
        le=1024,
        description="Checkpoints that a prompt leaves in the prompt cache at most, on recurrent and sliding-window"
        " models, besides one every cache.checkpoint_interval; 0 = none at all.",
    )

    embeddings: Literal["auto", "mean", "cls", "last", "off"] = Field(
        default="auto",
        description="How a text's tokens become one vector for /v1/embeddings: their mean, the first or the last one."
        " auto = as the model's file says, mean where it says nothing. off = none are made.",
    )
    embeddings_ctx: int = Field(
        default=2048,
        ge=1,
        le=2**24,
        json_schema_extra={"unit": "tokens"},
        description="Longest text that can be embedded or ranked. Memory for so many tokens is taken with the first"
        " one, and given back after a minute without any.",
    )

    @field_validator("flash_attn")
    @classmethod
    def _quantised_kv_needs_flash_attention(cls, value: str, info: ValidationInfo) -> str:
        kv = info.data.get("kv", "f16")
        if value == "off" and kv not in (*UNQUANTISED_KV, "auto"):
            raise ValueError(f"must not be off with model.kv = {kv!r}: a quantised V cache needs it")
        return value

    @field_validator("batch")
    @classmethod
    def _a_batch_holds_a_token_of_every_slot(cls, value: int, info: ValidationInfo) -> int:
        slots = info.data.get("slots", 1)
        if value <= slots:  # one sequence more is lcpd's own
            raise ValueError(f"must be more than model.slots = {slots}")
        return value


class SchedulerSettings(Section):
    """Who is served when, and for how long one may wait."""

    max_stall_ms: float = Field(
        default=200.0,
        ge=1,
        le=60_000,
        json_schema_extra={"unit": "milliseconds"},
        description="Time that running streams may wait for a step's share of another request's prompt.",
    )
    ageing: Seconds = Field(
        default=30.0,
        description="Waiting time from which a background request is served like an interactive one.",
    )
    queue_timeout: Seconds = Field(
        default=600.0, description="Time that a request may wait for its first start before it is refused."
    )
    follow_timeout: Seconds = Field(
        default=120.0,
        description="Time that a request may wait for another one that is computing the beginning of both.",
    )
    follow_min: int = Field(
        default=128,
        ge=1,
        le=2**24,
        json_schema_extra={"unit": "tokens"},
        description="Tokens that such a wait must save.",
    )
    retry_grace: SecondsOrNever = Field(
        default=5.0,
        description="Time for which the reply of a client that went away is remembered: when the same request comes"
        " again within it, it gets that from the start and goes on behind it; 0 = it begins anew. Replies that are"
        " streamed and sampled at random always do.",
    )


class EngineSettings(Section):
    """How the worker process is watched, stopped and restarted."""

    emit_interval: Annotated[float, Field(ge=0, le=1, json_schema_extra={"unit": "seconds"})] = Field(
        default=0.05,
        description="Time for which tokens are gathered before they are sent; 0 = each by itself, which costs speed.",
    )
    start_timeout: Seconds = Field(default=30.0, description="Time from the start of the process to its greeting.")
    load_timeout: Seconds = Field(default=900.0, description="Time to load the model.")
    heartbeat_timeout: Seconds = Field(
        default=60.0,
        description="Time without progress of the decode loop, while it has work, before it is killed.",
    )
    stop_timeout: Seconds = Field(default=10.0, description="Time from SIGTERM to SIGKILL.")
    restart_backoff: Seconds = Field(default=0.5, description="Wait before the first restart; doubled for each more.")
    restart_backoff_max: Seconds = Field(
        default=30.0, description="Longest wait before a restart; not less than restart_backoff."
    )
    crash_limit: int = Field(
        default=5,
        ge=1,
        le=1000,
        description="Crashes within crash_window, with nothing computed in between, after which no restart is tried.",
    )
    crash_window: Seconds = Field(default=120.0, description="Time over which crashes are counted.")
    sleep_after: SecondsOrNever = Field(
        default=0.0,
        description="Time without a request after which the engine is stopped to free its memory; the next request"
        " starts it again. 0 = never.",
    )
    log_lines: int = Field(
        default=200, ge=1, le=100000, description="Last lines of the worker's log kept for error messages."
    )

    @field_validator("restart_backoff_max")
    @classmethod
    def _the_longest_wait_is_not_shorter_than_the_first(cls, value: float, info: ValidationInfo) -> float:
        first = info.data.get("restart_backoff", value)
        if value < first:
            raise ValueError(f"must not be less than engine.restart_backoff = {first}")
        return value


class ChatSettings(Section):
    """Limits of the chat process (templates, grammars, parsing, tokenising)."""

    memory_limit: Size = size_field(
        4 * 2**30,
        low=64 * 2**20,
        description="Address space that the process may use beyond its start.",
    )
    call_timeout: Seconds = Field(default=20.0, description="Time that one call may take before it is given up.")
    max_json_depth: int = Field(
        default=200, ge=8, le=1000, description="Deepest nesting of JSON accepted in a request."
    )


class CacheSettings(Section):
    """The prompt cache: state of prompts that no slot holds any more."""

    ram: Size = size_field(
        8 * 2**30,
        description="Memory for it, taken as it fills and never more than this; halved at the start until it fits into"
        " what is available. 0 = no prompt cache.",
    )
    verify: Literal["always", "once"] = Field(
        default="always",
        description="When saved state is compared with its checksum: always = each time before it is used; once = the"
        " first time, and again after each start of the engine, which is faster where memory is the limit.",
    )
    checkpoint_interval: int = Field(
        default=8192,
        ge=64,
        le=2**24,
        json_schema_extra={"unit": "tokens"},
        description="Distance between checkpoints of a long prompt on recurrent and sliding-window models, at most:"
        " what a crash costs.",
    )
    save_after: SecondsOrNever = Field(
        default=5.0,
        description="Idle time after which what a slot holds is saved to RAM too, so that a crash does not cost it;"
        " 0 = not before its place is needed.",
    )
    save_every: SecondsOrNever = Field(
        default=30.0, description="How often the tail of a running reply is saved to RAM; 0 = never."
    )
    replay: bool = Field(
        default=True,
        description="Whether a reply that comes back in a conversation is taken as the tokens that were generated,"
        " however the client or the template wrote it.",
    )
    drop_attribution: bool = Field(
        default=True,
        description="Whether the line that Claude Code puts in front of its system text, other ones in each session, is"
        " left out of the prompt.",
    )
    stable_tools: bool = Field(
        default=True,
        description="Whether tools that come in another order than before, or written with their keys in another order,"
        " are rendered as they were the first time.",
    )
    anticipate: bool = Field(
        default=True,
        description="Compute the beginning of a conversation's next turn while nothing else is to be done.",
    )
    prewarm: int = Field(
        default=1,
        ge=0,
        le=64,
        description="Conversations, those active last, that are brought back from RAM or disk to empty slots when the"
        " engine has started and nothing else is to be done; 0 = none.",
    )
    dir: UserPath | None = Field(
        default=None,
        examples=["/var/cache/lcpd/prompts"],
        description="Folder of the prompt cache's disk tier, for this daemon alone. Unset: prompts in lcpd's cache"
        " folder.",
    )
    disk: Size = size_field(
        0,
        description="Disk space for the prompt cache, never more than this; 0 = nothing is written to disk. What is"
        " there can be read by who can read the folder: token ids are as good as texts.",
    )
    disk_floor: Size = size_field(
        2 * 2**30,
        description="Space that stays free on the file system: nothing is written that would leave less.",
    )
    write_budget: Size = size_field(
        64 * 2**30,
        description="What may be written to disk in 24 hours, to spare an SSD; 0 = no limit.",
    )
    ttl: Annotated[float, Field(ge=0, le=36500, json_schema_extra={"unit": "days"})] = Field(
        default=30.0,
        description="Time since its last use after which what is on disk is removed; 0 = never.",
    )
    isolate: Literal["off", "key"] = Field(
        default="off",
        description="key: what was computed for one API key is never used for another one, in slots, RAM and on disk.",
    )


class MetricsSettings(Section):
    """Figures for Prometheus, which GET /metrics of the server gives in any case, and traces."""

    port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="TCP port for GET /metrics alone, where no key is asked for; 0 = none.",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on with it.")
    traces: str = Field(
        default="",
        pattern=r"^(https?://.+)?$",
        examples=["http://127.0.0.1:4318/v1/traces"],
        description="Where to send a trace of every request (OpenTelemetry, OTLP over HTTP); needs lcpd[otel]. Empty:"
        " nowhere.",
    )


class LogSettings(Section):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level to log.")
    format: Literal["text", "json"] = Field(default="text", description="text for people, json for log collectors.")


class Settings(BaseSettings):
    """All settings.  ``Settings()`` reads no file and no environment: it is the defaults."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix="LCPD_",
        env_nested_delimiter="__",
        env_ignore_empty=True,
        enable_decoding=False,
    )

    server: ServerSettings = ServerSettings()
    model: ModelSettings = ModelSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    engine: EngineSettings = EngineSettings()
    chat: ChatSettings = ChatSettings()
    cache: CacheSettings = CacheSettings()
    metrics: MetricsSettings = MetricsSettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the given values: the loader merges the sources itself, to know where each value came from."""
        return (init_settings,)


def sections() -> dict[str, type[Section]]:
    """The section classes by name, in the order of the file."""
    found: dict[str, type[Section]] = {}
    for name, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, Section)
        found[name] = field.annotation
    return found


def leaves() -> dict[str, FieldInfo]:
    """Every setting by its full name ``section.key``, in the order of the file."""
    return {
        f"{section}.{key}": field for section, model in sections().items() for key, field in model.model_fields.items()
    }


def value_of(settings: Settings, name: str) -> Any:
    """The value of the setting with the full name ``section.key``."""
    section, key = name.split(".")
    return getattr(getattr(settings, section), key)
