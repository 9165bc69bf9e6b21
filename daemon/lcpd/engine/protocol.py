"""Messages between the daemon and the worker.

The worker knows sequences, not conversations: the daemon says which tokens a sequence is to hold, where computing may
begin and where checkpoints are to be taken; the worker answers with what it did.  Token arrays travel as
little-endian int32 bytes (``numpy``'s ``<i4``).  A field that names no unit counts tokens or positions.

`VERSION` in :mod:`lcpd.ipc.handshake` covers these messages.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


def pack(tokens: Tokens) -> bytes:
    """Tokens or positions as bytes."""
    return np.ascontiguousarray(tokens, "<i4").tobytes()


def unpack(data: bytes) -> Tokens:
    """The array that `pack` took."""
    return np.frombuffer(data, "<i4").astype(np.int32)


class Message(msgspec.Struct, tag_field="type", frozen=True):
    """Base of all messages."""


# ---- daemon -> worker ------------------------------------------------------------------------------------


class ContextSettings(msgspec.Struct, frozen=True):
    """How the model and its one context are set up."""

    n_ctx: int
    """Cells of the unified KV cache; 0 takes the model's training length, at most `n_ctx_cap`."""
    n_ctx_cap: int
    slots: int
    """Sequences 0..slots-1 serve requests; one more, `slots`, is scratch."""
    n_batch: int
    n_ubatch: int
    threads: int
    kv_type: str
    flash_attn: Literal["auto", "on", "off"]
    gpu_layers: int
    """-1: as many as the model has."""
    tensor_split: list[float]
    main_gpu: int
    mmap: bool
    mlock: bool
    emit_interval: float = 0.0
    """Seconds for which tokens may be gathered before they are sent."""


class Load(Message, frozen=True, tag="load"):
    """Load a model.  Answered by LoadProgress messages, then Loaded or LoadFailed."""

    model: str
    """The model id that later messages name."""
    path: str
    context: ContextSettings


class Embeddings(msgspec.Struct, frozen=True):
    """Input vectors that stand for prompt items [begin, begin + count) instead of tokens."""

    begin: int
    count: int
    data: bytes
    """float32, count x n_embd, little-endian."""


class Start(Message, frozen=True, tag="start"):
    """Run one request on a sequence.

    The worker resumes at `begin` (after rolling back with checkpoint `restore`, where that is set), decodes the rest
    of the prompt, and generates.  Where the sequence does not hold what is expected, it clears the sequence and
    begins at 0: Started tells where it really began.
    """

    model: str
    request: int
    seq: int
    tokens: bytes
    """The whole prompt; items that are embeddings hold -1."""
    begin: int
    """The sequence already holds items [0, begin); less than the prompt's length."""
    restore: int
    """Id of the checkpoint at `begin`, or -1 where truncating the sequence is enough."""
    checkpoints: dict[int, int]
    """Position -> id: take checkpoint `id` when the sequence holds exactly `position` items.  Positions up to where
    computing begins are passed over; they count when it has to begin earlier than asked."""
    fields: bytes
    """The request's fields for the bridge (JSON)."""
    max_tokens: int
    positions: bytes = b""
    """Position of every item where it differs from the item's index (M-RoPE); empty otherwise."""
    embeddings: list[Embeddings] = []


class Cancel(Message, frozen=True, tag="cancel"):
    """Stop a request after the batch in progress.  Answered by Finished with reason "cancelled", unless it is over."""

    model: str
    request: int


class Drop(Message, frozen=True, tag="drop"):
    """Forget checkpoints."""

    model: str
    checkpoints: list[int]


class Clear(Message, frozen=True, tag="clear"):
    """Empty an idle sequence."""

    model: str
    seq: int


class Quit(Message, frozen=True, tag="quit"):
    """Exit with status 0."""


ToWorker = Load | Start | Cancel | Drop | Clear | Quit

# ---- worker -> daemon ------------------------------------------------------------------------------------


class LoadProgress(Message, frozen=True, tag="load-progress"):
    """How much of the model has been read, 0 to 1."""

    model: str
    fraction: float


class ModelInfo(msgspec.Struct, frozen=True):
    """What was loaded, as libllama reports it."""

    description: str
    kind: Literal["attention", "swa", "hybrid", "recurrent"]
    """What a sequence's state is made of; all but "attention" need checkpoints to roll back."""
    n_params: int
    size_bytes: int
    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_batch: int
    n_ubatch: int
    threads: int
    devices: dict[str, int]
    """Device -> number of layers that it holds."""
    system: str
    build: str


class Loaded(Message, frozen=True, tag="loaded"):
    """The model is ready: a token has been generated."""

    model: str
    info: ModelInfo
    seconds: float


class LoadFailed(Message, frozen=True, tag="load-failed"):
    """The model cannot be loaded; the worker exits after sending this."""

    model: str
    reason: str


class Started(Message, frozen=True, tag="started"):
    """A request's first batch is next; computing begins at `begin`.

    Sent again, with 0, when the request had to give its cells to others and begins anew.
    """

    request: int
    begin: int


class Prefilled(Message, frozen=True, tag="prefilled"):
    """A prefill batch is done: the sequence holds `done` of the prompt's items."""

    request: int
    done: int
    seconds: float
    """What this batch took."""


class Checkpointed(Message, frozen=True, tag="checkpointed"):
    """A checkpoint was taken (in the worker's memory)."""

    request: int
    checkpoint: int
    position: int
    size_bytes: int


class Output(msgspec.Struct, frozen=True, array_like=True):
    """What the last steps produced for one request."""

    request: int
    tokens: list[int]
    text: str
    """What may be sent now; text that could still become a stop string or a UTF-8 character is held back."""


class Step(Message, frozen=True, tag="step"):
    """What one or more decode steps over all running sequences produced."""

    outputs: list[Output]


Reason = Literal["stop", "stop-string", "length", "cancelled"]


class Finished(Message, frozen=True, tag="finished"):
    """A request is over; the sequence keeps its state."""

    request: int
    reason: Reason
    text: str
    """The rest of the text that was held back."""
    stop: str
    """The stop string that matched, or ""."""
    generated: int
    """Sampled tokens, the end-of-generation token included."""
    held: bytes
    """The tokens that the sequence holds after the prompt: those generated and decoded."""
    prefill_seconds: float
    decode_seconds: float


class Failed(Message, frozen=True, tag="failed"):
    """A request could not be run; its sequence is empty now (unless another request runs on it)."""

    request: int
    code: Literal["invalid", "compute"]
    message: str


class Evicted(Message, frozen=True, tag="evicted"):
    """An idle sequence was emptied because the running ones needed its cells."""

    seq: int


class Beat(Message, frozen=True, tag="beat"):
    """Sent by the decode loop itself: it is alive, and this is how far it came."""

    batches: int
    """llama_decode calls since the start."""
    tokens: int
    """Tokens decoded since the start."""
    running: int
    """Requests in prefill or decode."""


FromWorker = (
    LoadProgress | Loaded | LoadFailed | Started | Prefilled | Checkpointed | Step | Finished | Failed | Evicted | Beat
)
