"""What a crash of the worker cost, in tokens: told by the worker's own messages, not by the daemon's counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lcpd.engine import protocol as p


@dataclass(frozen=True)
class Loss:
    """One request that ran when the worker died, and went on."""

    crash: int
    """Number of the crash, from 1."""
    request: int
    at: int
    """Tokens of prompt and reply that its sequence held at the crash."""
    generated: int
    """Of these, tokens of the reply."""
    begin: int
    """Where the next worker began to compute."""

    @property
    def again(self) -> int:
        """Tokens computed a second time."""
        return max(0, self.at - self.begin)


@dataclass
class _Run:
    prompt: int = 0
    """Tokens; known once the reply has begun."""
    at: int = 0
    generated: int = 0
    crash: int = 0
    """The crash that it has to recover from; 0: none."""
    at_crash: int = 0
    generated_at_crash: int = 0


class Losses:
    """Listens to a dispatcher's engine from its creation on."""

    def __init__(self, dispatcher: Any) -> None:
        self.crashes = 0
        self.found: list[Loss] = []
        self._runs: dict[int, _Run] = {}
        hear, fall = dispatcher.on_message, dispatcher.on_down

        def on_message(message: p.FromWorker) -> None:
            self._take(message)
            hear(message)

        def on_down(*told: str) -> None:
            self._fall()
            fall(*told)

        dispatcher.on_message, dispatcher.on_down = on_message, on_down

    def _take(self, message: p.FromWorker) -> None:
        match message:
            case p.Started():
                run = self._runs.setdefault(message.request, _Run())
                if run.crash:
                    self.found.append(
                        Loss(run.crash, message.request, run.at_crash, run.generated_at_crash, message.begin)
                    )
                    run.crash = 0
                run.at = message.begin
            case p.Prefilled() if run := self._runs.get(message.request):
                run.at = message.done
            case p.Step():
                for output in message.outputs:
                    if run := self._runs.get(output.request):
                        # The newest token is sampled, but not decoded yet.
                        run.at += len(output.tokens) - (run.generated == 0)
                        run.generated += len(output.tokens)
            case p.Finished() | p.Failed():
                self._runs.pop(message.request, None)

    def _fall(self) -> None:
        self.crashes += 1
        for run in self._runs.values():
            if not run.crash:
                run.crash, run.at_crash, run.generated_at_crash = self.crashes, run.at, run.generated
