"""Messages between the daemon and the worker.

The worker knows sequences, not conversations: the daemon says which tokens a sequence is to hold, where computing may
begin and where checkpoints are to be taken; the worker answers with what it did.  Token arrays travel as
little-endian int32 bytes (``numpy``'s ``<i4``).  A field that names no unit counts tokens or positions.

State bytes do not travel: both sides map the arena, a memfd of the daemon's, and messages name places in it.  The
daemon alone decides what lies where; the worker writes into the extents that a command gives it, and says when their
bytes are complete.  Commands take effect in the order in which they were sent (Cancel, Park and Mark at once).

`VERSION` in :mod:`lcpd.ipc.handshake` covers these messages.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]
RANDOM_SEED = 2**32 - 1
"""The sampler's seed that stands for a random one (LLAMA_DEFAULT_SEED)."""


def pack(tokens: Tokens) -> bytes:
    """Tokens or positions as bytes."""
    return np.ascontiguousarray(tokens, "<i4").tobytes()


def unpack(data: bytes) -> Tokens:
    """The array that `pack` took."""
    return np.frombuffer(data, "<i4").astype(np.int32)


class Message(msgspec.Struct, tag_field="type", frozen=True):
    """Base of all messages."""


# ---- bytes in the arena ------------------------------------------------------------------------------------


class Extent(msgspec.Struct, frozen=True, array_like=True):
    """A place in the arena.  Both in bytes."""

    offset: int
    size: int


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A complete piece of state in the arena: exactly the bytes of `extent`."""

    extent: Extent
    checksum: bytes
    """xxh3-128 of the bytes; whoever reads them compares it first."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Exported KV of tokens [begin, end)."""

    begin: int
    end: int
    piece: Piece


class Cut(msgspec.Struct, frozen=True, array_like=True):
    """KV of tokens [begin, end) that is to be exported into `extent`, which is large enough."""

    begin: int
    end: int
    extent: Extent


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
    max_stall: float = 0.2
    """Seconds that running streams may wait for a step's prefill."""
    verify_once: bool = False
    """Whether bytes of the arena that were found right once are not checked again."""


class EmbeddingSettings(msgspec.Struct, frozen=True):
    """How texts become vectors, in a context of their own that is made when the first one comes."""

    pooling: Literal["auto", "mean", "cls", "last"]
    """auto: what the model's file says, and mean where it says nothing."""
    n_ctx: int
    """Tokens of the longest text; what the model was trained for where that is less."""


class Load(Message, frozen=True, tag="load"):
    """Load a model.  Answered by LoadProgress messages, then Loaded or LoadFailed."""

    model: str
    """The model id that later messages name."""
    path: str
    context: ContextSettings
    arena_bytes: int = 0
    """Size of the arena, whose descriptor came along with the hello; 0: there is none."""
    embeddings: EmbeddingSettings | None = None
    """None: texts are not embedded."""


class Embeddings(msgspec.Struct, frozen=True):
    """Input vectors that stand for prompt items [begin, begin + count) instead of tokens."""

    begin: int
    count: int
    data: bytes
    """float32, count x n_embd, little-endian."""


class Start(Message, frozen=True, tag="start"):
    """Run one request on a sequence that runs nothing, or go on with one that was parked (the same id).

    The sequence is brought to `begin` in three steps: it holds [0, shared) of `source`, then `segments` are appended,
    then `restore` is applied and what lies beyond `begin` is removed.  The rest of prompt and reply is decoded, and
    generation goes on.  Where any of this fails the sequence is emptied and computing begins at 0: Started tells
    where it really began.
    """

    model: str
    request: int
    seq: int
    tokens: bytes
    """The whole prompt; items that are embeddings hold -1."""
    begin: int
    """Where computing begins: less than the length of prompt and reply, the last of which is always decoded; it may be
    that length where nothing is sampled (`max_tokens` 0): nothing is computed then."""
    source: int = -1
    """The sequence whose [0, shared) is used: `seq` itself goes on where it stands, another one shares its cells with
    `seq`, which is emptied first; -1: `seq` is emptied and nothing is shared."""
    shared: int = 0
    segments: list[Segment] = []
    """Ascending and without gaps; the first one begins at or below `shared`."""
    restore: Piece | None = None
    """The checkpoint at `begin`; None where truncating is enough (pure attention, or the end of what is held)."""
    checkpoints: dict[int, Extent] = {}
    """Position -> where to write the checkpoint that is taken when the sequence holds exactly `position` items.
    Positions up to where computing begins are passed over; they count when it has to begin earlier than asked."""
    fields: bytes = b"{}"
    """The request's fields for the bridge (JSON)."""
    max_tokens: int = 1
    """0: prefill only.  All of the prompt is computed (to its end, so that the sequence holds every item), nothing is
    sampled, and Finished comes with reason "length", generated 0 and nothing held behind the prompt."""
    min_tokens: int = 0
    """Generated tokens before an end-of-generation token may be sampled."""
    priority: int = 0
    """Lower is prefilled first; equal ones take turns."""
    reply: bytes = b""
    """Tokens that were generated before and have been sent; not needed for a request that this worker has parked."""
    positions: bytes = b""
    """Position of every item where it differs from the item's index (M-RoPE); empty otherwise."""
    embeddings: list[Embeddings] = []


class Mark(Message, frozen=True, tag="mark"):
    """Take one more checkpoint of a running request, at a position of its prompt or reply that it has not passed yet.

    Nothing happens, and nothing is answered, when it has.
    """

    model: str
    request: int
    position: int
    extent: Extent


class Cancel(Message, frozen=True, tag="cancel"):
    """Stop a request after the batch in progress.  Answered by Finished with reason "cancelled", unless it is over.

    A parked request is forgotten, and answered the same.
    """

    model: str
    request: int


class Park(Message, frozen=True, tag="park"):
    """Take a request off its sequence after the batch in progress.  Answered by Parked, unless it is over.

    Its sampler and text stay in the worker until a Start or Cancel with the same id; the sequence keeps its state.
    """

    model: str
    request: int


class Save(Message, frozen=True, tag="save"):
    """Export state of a sequence, running or not.  Answered by Saved."""

    model: str
    seq: int
    cuts: list[Cut]
    checkpoint: Extent | None = None
    """Where to write the checkpoint of where the sequence stands; only for one that runs nothing."""


class Clear(Message, frozen=True, tag="clear"):
    """Empty a sequence that runs nothing."""

    model: str
    seq: int


class Embed(Message, frozen=True, tag="embed"):
    """Make vectors of texts, beside everything else.  Answered by one Embedded for each text, in order.

    No sequence is touched.  Where the model is a reranker (ModelInfo.pooling is "rank") a vector is one number.
    """

    model: str
    request: int
    """A number of its own: that of a Start may be the same."""
    texts: list[bytes]
    """The tokens of each, packed."""
    priority: int = 0
    """As in Start; it takes turns with prefills that are no more urgent, and lets others go first."""


class StopEmbedding(Message, frozen=True, tag="stop-embedding"):
    """Forget the texts of an Embed that have no vector yet.  Not answered."""

    model: str
    request: int


class Quit(Message, frozen=True, tag="quit"):
    """Exit with status 0."""


ToWorker = Load | Start | Mark | Cancel | Park | Save | Clear | Embed | StopEmbedding | Quit

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
    alignment: int = 1
    """Prefill is cut at multiples of this: 1, or n_ubatch where the load-time self-test saw cuts change logits."""
    segment_bytes: tuple[int, int] = (0, 0)
    """A segment of n tokens has at most a + b * n bytes."""
    checkpoint_bytes: int = 0
    """A checkpoint has at most so many bytes; 0 on models that need none."""
    flash_attn: bool | None = None
    """Whether flash attention is used, however it was asked for; None where libllama does not tell."""
    pooling: Literal["", "mean", "cls", "last", "rank"] = ""
    """How the vectors of a text's tokens become one; "": texts are not embedded."""
    generates: bool = True
    """Whether it can generate at all; some models only embed."""
    embedding_ctx: int = 0
    """Tokens of the longest text that can be embedded."""
    embedding_width: int = 0
    """Numbers in a vector."""
    memory: dict[str, dict[str, float]] = {}
    """MiB of the buffers, as libllama logs them: what for (model, KV, RS, compute, output) -> device -> size."""

    @property
    def rolls_back(self) -> bool:
        """Whether a sequence can be truncated anywhere without a checkpoint."""
        return self.kind == "attention"

    @property
    def needs_segments(self) -> bool:
        """Whether a sequence's state is more than its checkpoint; not so on pure recurrent models."""
        return self.segment_bytes != (0, 0) or not self.checkpoint_bytes


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
    """A request's first batch is next; computing begins at `begin`."""

    request: int
    begin: int
    problem: str = ""
    """Why computing begins at 0 instead of where it was asked to; "" otherwise."""
    restore_seconds: float = 0.0
    """What bringing the sequence to `begin` took."""
    damaged: bool = False
    """Whether the problem is that the bytes of a piece are not those of its checksum."""
    runs: int = 0
    """Runs of contiguous cells into which segments were copied; an estimate (:mod:`lcpd.native.runs`)."""


class Prefilled(Message, frozen=True, tag="prefilled"):
    """A prefill batch is done: the sequence holds `done` items of the prompt and of the reply that the Start told."""

    request: int
    done: int
    seconds: float
    """What this batch took."""


class Checkpointed(Message, frozen=True, tag="checkpointed"):
    """A checkpoint was taken at `position`."""

    request: int
    position: int
    extent: Extent
    """The one that was given for it."""
    piece: Piece | None
    """The front part of `extent`; None when the state did not fit into it."""


class TokenProbs(msgspec.Struct, frozen=True, array_like=True):
    """How probable a sampled token and its alternatives were (natural logarithms)."""

    token: int
    logprob: float
    piece: bytes
    """The token's bytes."""
    top: list[tuple[int, float, bytes]]
    """The most probable tokens (id, logprob, bytes), best first; as many as the request's n_probs."""


class Output(msgspec.Struct, frozen=True, array_like=True):
    """What the last steps produced for one request."""

    request: int
    tokens: list[int]
    text: str
    """What may be sent now; text that could still become a stop string or a UTF-8 character is held back."""
    probs: list[TokenProbs] = []
    """One for each of `tokens` where the request asked for them."""


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


class Parked(Message, frozen=True, tag="parked"):
    """A request was taken off its sequence, which keeps its state."""

    request: int
    seq: int
    done: int
    """Items of the prompt that the sequence holds."""
    held: bytes
    """The tokens that the sequence holds after the prompt."""
    generated: bytes
    """All tokens sampled so far; the last one is not held yet."""


class Saved(Message, frozen=True, tag="saved"):
    """The bytes that a Save asked for are complete."""

    seq: int
    segments: list[Segment]
    """One for each cut, in order; fewer when `problem` says why."""
    checkpoint: Piece | None
    problem: str = ""
    seconds: float = 0.0
    runs: int = 0
    """Runs of contiguous cells from which segments were copied; an estimate (:mod:`lcpd.native.runs`)."""


class Embedded(Message, frozen=True, tag="embedded"):
    """A text has become a vector."""

    request: int
    text: int
    """Which of the Embed's texts."""
    vector: bytes
    """float32, little-endian, not normalised; empty where there is a problem."""
    problem: str = ""
    """Why there is none; the rest of the request is forgotten then."""


class Starved(Message, frozen=True, tag="starved"):
    """There are no free cells for the next batch of running requests, which wait until some are freed.

    Sent once; again only after a batch was decoded in between.
    """

    cells: int
    """How many are needed."""


class Beat(Message, frozen=True, tag="beat"):
    """Sent by the decode loop itself: it is alive, and this is how far it came."""

    batches: int
    """llama_decode calls since the start."""
    tokens: int
    """Tokens decoded since the start."""
    running: int
    """Requests in prefill or decode."""


FromWorker = (
    LoadProgress
    | Loaded
    | LoadFailed
    | Started
    | Prefilled
    | Checkpointed
    | Step
    | Parked
    | Saved
    | Embedded
    | Starved
    | Finished
    | Failed
    | Beat
)
