"""Where a text that comes in pieces ends because of its indentation or its time, as llama-server's /infill has it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Where a reply ends that would go on."""

    indent: int
    """White space that every line after the first must begin with; 0: none."""
    seconds: float
    """At the first line break after so much time; 0 or less: never."""


@dataclass
class Cutter:
    """Applies limits to a text that comes in pieces."""

    limits: Limits
    text: str = ""
    """What may be sent."""
    _held: str = ""
    """White space at the beginning of a line, while nobody knows yet whether it is enough."""
    over: bool = False
    """Whether the reply ends here."""

    def push(self, text: str, elapsed: float) -> str:
        """Add text; returns what may be sent now.  `elapsed`: seconds since the first token."""
        if self.over:
            return ""
        before = len(self.text)
        text, self._held = self._held + text, ""
        end = self._end(text)
        self.over = end is not None
        if end is None and self.limits.indent:
            last = text.rfind("\n")
            if (last >= 0 or self._at_line_start) and not text[last + 1 :].strip(" \t"):
                text, self._held = text[: last + 1], text[last + 1 :]
        self.text += text[:end]
        if "\n" in text[:end] and 0 < self.limits.seconds < elapsed:
            self.over = True
        return self.text[before:]

    def finish(self) -> str:
        """The reply is complete: what was held back may be sent, too."""
        held, self._held = ("" if self.over else self._held), ""
        self.text += held
        return held

    @property
    def _at_line_start(self) -> bool:
        return self.text.endswith("\n")

    def _end(self, text: str) -> int | None:
        """Where the text ends because a line is indented too little: behind its white space, as llama-server does."""
        if not self.limits.indent:
            return None
        at = 0 if self._at_line_start else text.find("\n") + 1 or None
        while at is not None:
            start = at
            while at < len(text) and text[at] in " \t":
                at += 1
            if at < len(text) and at - start < self.limits.indent:
                return at
            at = text.find("\n", at) + 1 or None
        return None
