"""Makes jobs from Starts, and says after each token what becomes of a reply."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lcpd.engine import protocol as p
from lcpd.engine.job import Job
from lcpd.engine.sampling import Picker
from lcpd.engine.stops import TextFilter
from lcpd.native.bridge import Params, Request, Sampler
from lcpd.native.model import Model


@dataclass(frozen=True)
class Verdict:
    """What a token brought."""

    text: str = ""
    """Text that may be sent now."""
    reason: p.Reason | None = None
    """Why the reply is over, if it is."""
    stop: str = ""
    """The stop string that matched, or ""."""


class Replies:
    """Knows what the model's tokens mean for a reply."""

    def __init__(self, model: Model, params: Params, picker: Picker) -> None:
        self._model = model
        self._params = params
        self._picker = picker

    def begin(self, command: p.Start) -> tuple[Job, Verdict]:
        """A new job, with the reply that the Start tells was generated before; nothing of that is sent again.

        Raises BridgeError or ValueError for a request that cannot be run.
        """
        prompt = p.unpack(command.tokens)
        if not len(prompt):
            raise ValueError("the prompt is empty")
        positions = p.unpack(command.positions) if command.positions else np.arange(len(prompt), dtype=np.int32)
        request = Request(self._params, self._model.handle, command.fields)
        info = request.info()
        sampler = Sampler(request, self._model.handle)
        sampler.accept_prompt(prompt[prompt >= 0])
        job = Job(
            request=command.request,
            seq=command.seq,
            prompt=prompt,
            positions=positions,
            embeddings=command.embeddings,
            checkpoints={},
            sampler=sampler,
            text=TextFilter(info["stop"]),
            preserved=frozenset(info["preserved_tokens"]),
            ends_reply=not info["ignore_eos"],
            n_probs=info["n_probs"],
            post_probs=info["post_sampling_probs"],
            max_tokens=command.max_tokens,
            min_tokens=command.min_tokens,
            priority=command.priority,
        )
        verdict = Verdict()
        for token in p.unpack(command.reply).tolist():
            if verdict.reason:
                raise ValueError(f"the reply goes on after token {len(job.generated)}, which ends it")
            sampler.accept(token)
            verdict = self.add(job, token)
        return job, verdict

    def resume(self, job: Job, command: p.Start) -> tuple[Job, Verdict]:
        """A job that was parked, on another Start of the same request.  Raises ValueError."""
        if not np.array_equal(job.prompt, p.unpack(command.tokens)):
            raise ValueError(f"request {job.request} was parked with another prompt")
        job.seq = command.seq
        job.priority = command.priority
        job.starved = False
        return job, Verdict()

    def add(self, job: Job, token: int) -> Verdict:
        """Add a token to the job's reply."""
        job.generated.append(token)
        released = job.text.push(self._picker.piece(token, token in job.preserved))
        if released.stop is not None:
            return Verdict(released.text, "stop-string", released.stop)
        if job.ends_reply and token in self._model.end_tokens:
            return Verdict(released.text, "stop")
        if len(job.generated) >= job.max_tokens:
            return Verdict(released.text, "length")
        return Verdict(released.text)
