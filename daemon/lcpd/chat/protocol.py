"""Messages between the daemon and the chat process.

Every call has an id and gets exactly one answer with that id, in order: the answer of the call's kind, or Problem.
JSON travels as bytes; token arrays as in :mod:`lcpd.engine.protocol`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Dialect = Literal["chat", "responses", "anthropic"]


class Message(msgspec.Struct, tag_field="type", frozen=True):
    """Base of all messages."""


# ---- calls -----------------------------------------------------------------------------------------------


class Open(Message, frozen=True, tag="open"):
    """The first call: load the vocabulary and the template.  Answered by Opened."""

    call: int
    path: str
    template: str | None
    """Overrides the model's own."""
    memory_limit: int
    """Bytes of address space that the process may add to what it has once it is ready."""


class Render(Message, frozen=True, tag="render"):
    """Render and tokenise a chat body.  Answered by Rendered."""

    call: int
    dialect: Dialect
    body: bytes
    overrides: bytes | None = None
    """JSON object: fields of the chat body that win over those converted from another dialect."""
    more: bytes | None = None
    """JSON list: messages in OpenAI's shape that follow on the body's."""
    scope: int = 0
    """Only replies that were remembered for prompts of the same one are repeated (:func:`lcpd.chat.replay.digest`),
    and only tokens of texts of the same one are used again."""
    context: int = 0
    """Tokens of the model's context: for a text that is longer in any case the answer is TooLong.  0: not known."""
    store: bool = True
    """Whether the text and its tokens may be remembered.  What is remembered already may be used in any case."""


class Complete(Message, frozen=True, tag="complete"):
    """Tokenise a text completion's prompt and check its fields.  Answered by Rendered."""

    call: int
    prompt: str | list[int]
    """Text, or tokens."""
    body: bytes
    context: int = 0
    """This and the next two as in Render."""
    scope: int = 0
    store: bool = True


class Infill(Message, frozen=True, tag="infill"):
    """The prompt for code between two pieces of code, and a check of its fields.  Answered by Rendered.

    See :mod:`lcpd.chat.infill`.
    """

    call: int
    prefix: str | list[str | int]
    suffix: str | list[str | int]
    prompt: str
    files: list[tuple[str, str]]
    """Name and text."""
    context: int
    """This and the next two in tokens, as :class:`lcpd.chat.infill.Room` has them."""
    batch: int
    reply: int
    body: bytes


class Pair(Message, frozen=True, tag="pair"):
    """What a reranker is given of a query and a document.  Answered by Tokenized."""

    call: int
    query: str
    document: str


class Tokenize(Message, frozen=True, tag="tokenize"):
    """Tokens of a text, or of texts and tokens in turn.  Answered by Tokenized."""

    call: int
    text: str | list[str | int]
    add_special: bool
    """Where it begins with a text: add what the model wants at a prompt's ends."""
    parse_special: bool


class Detokenize(Message, frozen=True, tag="detokenize"):
    """The texts of runs of tokens, special tokens included.  Answered by Texts."""

    call: int
    runs: list[bytes]


class Spell(Message, frozen=True, tag="spell"):
    """The bytes of each of these tokens, special tokens included; they may be any numbers.  Answered by Spelled."""

    call: int
    tokens: bytes


class Template(Message, frozen=True, tag="template"):
    """The prompt's text for a chat body, neither tokenised nor checked further.  Answered by Templated."""

    call: int
    body: bytes


class Remember(Message, frozen=True, tag="remember"):
    """A reply is complete: where a later prompt repeats it, it is to have these tokens.  Answered by Done.

    See :mod:`lcpd.chat.replay`.
    """

    call: int
    prompt: bytes
    """The digest of the prompt without its generation prompt, which says for which scope it is, too."""
    reply: bytes
    """The tokens of the generation prompt and of the reply."""


class Forget(Message, frozen=True, tag="forget"):
    """Keep nothing of the prompts and replies that were seen so far, but for open replies.  Answered by Done."""

    call: int


class Push(Message, frozen=True, tag="push"):
    """Add text to the reply parser `stream`.  Answered by Deltas.

    `fields` opens the parser, or opens it anew; a final push closes it.
    """

    call: int
    stream: int
    text: str
    final: bool
    fields: bytes | None
    cut: bool = False
    """With a final one: the reply did not come to its end."""
    scope: int = 0
    """As in Render."""


class Close(Message, frozen=True, tag="close"):
    """Drop the reply parser `stream`, if it is open.  Answered by Done."""

    call: int
    stream: int


ToChat = (
    Open
    | Render
    | Complete
    | Infill
    | Pair
    | Tokenize
    | Detokenize
    | Spell
    | Template
    | Remember
    | Forget
    | Push
    | Close
)

# ---- answers ---------------------------------------------------------------------------------------------


class Opened(Message, frozen=True, tag="opened"):
    """The chat process is ready."""

    call: int
    info: bytes
    """JSON: the template's ``caps``, ``supports_thinking``, ``explicit`` and ``source``; the vocabulary's ``bos_token``
    and ``eos_token``, as texts; ``settings``: what holds where a request says nothing, in llama-server's words;
    ``infill_lacks``: names of the tokens that it lacks for Infill, which is refused where there are some."""
    n_vocab: int


class Span(msgspec.Struct, array_like=True, frozen=True):
    """One message of a rendered prompt, in tokens."""

    role: str
    begin: int
    length: int


class Rendered(Message, frozen=True, tag="rendered"):
    """A prompt, ready to run."""

    call: int
    tokens: bytes
    spans: list[Span]
    fields: bytes
    """JSON for the reply parser (Push)."""
    sampling: bytes
    """JSON for the engine: `fields` without what only the parser needs."""
    max_tokens: int
    """As the request asked; -1 where it did not."""


class TooLong(Message, frozen=True, tag="too-long"):
    """The prompt's text cannot fit, by its size alone; it was not tokenised."""

    call: int
    tokens: int
    """At least so many it would have."""
    context: int
    """As the call had it."""


class Tokenized(Message, frozen=True, tag="tokenized"):
    """A text's tokens."""

    call: int
    tokens: bytes


class Texts(Message, frozen=True, tag="texts"):
    """The texts that were asked for, in order; what is no valid text is replaced."""

    call: int
    texts: list[str]


class Spelled(Message, frozen=True, tag="spelled"):
    """The bytes of the tokens, in order; single tokens need not be valid text."""

    call: int
    pieces: list[bytes]


class Templated(Message, frozen=True, tag="templated"):
    """The prompt's text."""

    call: int
    prompt: str


class Deltas(Message, frozen=True, tag="deltas"):
    """What a push added to the reply."""

    call: int
    deltas: bytes
    """JSON list of OpenAI chat deltas."""
    message: bytes | None
    """JSON of the whole message, after a final push."""


class Done(Message, frozen=True, tag="done"):
    """It is done; there is nothing to tell."""

    call: int


class Problem(Message, frozen=True, tag="problem"):
    """The call was refused; the process is well."""

    call: int
    message: str


FromChat = Opened | Rendered | TooLong | Tokenized | Texts | Spelled | Templated | Deltas | Done | Problem
