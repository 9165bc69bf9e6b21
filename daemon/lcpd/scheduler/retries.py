"""A client that went away and sends its request again gets its reply from the start and loses nothing.

A client whose time-out strikes sends the same request once more, after a second or so; if it began anew, a reply that
takes longer than the time-out would never come.  Its prompt loses nothing anyway: what was computed of it stays in the
slot.  So nothing is kept running for somebody who may not come back: the request is cancelled, only its reply so far is
remembered for `retry_grace` seconds, and an equal request of the same client goes on behind it, as requests do after a
crash of the engine.  One that comes while the first is still being stopped waits for that.  A retry that is over
before it began, because its client went away too or no slot came free for it in time, leaves that reply once more.

Equal are requests of one client with the same prompt and the same fields for the sampler.  But somebody who saw the
beginning of a reply, stopped it and asks again wants another one.  So one that is sampled at random is remembered only
where nothing of it was shown: where it was not streamed, or had not begun.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from lcpd.engine.protocol import RANDOM_SEED
from lcpd.scheduler.events import Text
from lcpd.scheduler.generation import Prompt
from lcpd.scheduler.request import Request
from lcpd.scheduler.state import State

_NOT_THE_SAMPLERS = ("stream", "stream_options")
"""Fields that a retry may change: Claude Code asks for a whole reply when a stream has failed."""
_MOST = 64


@dataclass(frozen=True)
class Leftover:
    """A reply whose client went away."""

    name: bytes
    """What an equal request is known by."""
    generated: tuple[int, ...]
    said: tuple[Text, ...]
    """What the client was told, or would have been."""
    until: float
    """Monotonic seconds."""


class Retries:
    """Owns the leftovers, the oldest first."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._left: list[Leftover] = []

    def __len__(self) -> int:
        return len(self._left)

    def begin(self, request: Request, now: float) -> None:
        """A request came in: it goes on behind what is left of an earlier try, or waits for that to be stopped."""
        prompt, requests = request.prompt, self._state.requests.values()
        self.expire(now)
        if not self._state.policy.retry_grace or not prompt.store or prompt.kind != "generate":
            return
        request.recalled = not prompt.streamed or _is_reproducible(prompt)
        taken = {other.retries for other in requests}
        stopping = [other for other in requests if other.closed and other.id not in taken]
        if not (self._left or stopping):
            return  # without hashing every prompt
        name = _name(prompt)
        if earlier := next((other for other in stopping if _name(other.prompt) == name), None):
            request.retries = earlier.id
        elif leftover := next((one for one in self._left if one.name == name), None):
            self._left.remove(leftover)
            request.go_on_behind(leftover.generated, leftover.said)

    def left(self, request: Request, now: float) -> None:
        """A request is over that nobody listens to, or that was never started: its reply goes to who has asked again,
        or may still do so."""
        retry = next((other for other in self._state.requests.values() if other.retries == request.id), None)
        if retry is not None:
            retry.retries = None
        if not (request.recalled or request.untold) or not request.said or request.generation.answered:
            return
        generated, said = tuple(request.generated), tuple(request.said)
        if retry is not None:
            retry.go_on_behind(generated, said)
        else:
            until = now + self._state.policy.retry_grace
            self._left.append(Leftover(_name(request.prompt), generated, said, until))
            del self._left[:-_MOST]

    def expire(self, now: float) -> None:
        """Forget the replies that nobody has asked for in time."""
        self._left = [one for one in self._left if one.until > now]

    def next_moment(self) -> float | None:
        """When there is something to forget."""
        return self._left[0].until if self._left else None

    def forget(self) -> None:
        """Forget all replies, those of requests that are being stopped, too."""
        self._left.clear()
        for request in self._state.requests.values():
            if request.closed:
                request.recalled, request.untold = False, ()


def _is_reproducible(prompt: Prompt) -> bool:
    """Whether its sampler gives the same reply each time: it is greedy, or has a seed that is not the random one."""
    fields = msgspec.json.decode(prompt.sampling)
    temperature, seed = fields.get("temperature"), fields.get("seed")
    return (temperature is not None and temperature <= 0) or (seed is not None and seed % 2**32 != RANDOM_SEED)


def _name(prompt: Prompt) -> bytes:
    fields = {key: value for key, value in msgspec.json.decode(prompt.sampling).items() if key not in _NOT_THE_SAMPLERS}
    about = [prompt.client, prompt.max_tokens, prompt.min_tokens, fields]
    digest = hashlib.blake2b(msgspec.json.encode(about, order="sorted"), digest_size=16)
    digest.update(prompt.tokens.tobytes())
    return digest.digest()
