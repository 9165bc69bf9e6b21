"""Reading and writing clients' files, and the records of what was changed in them."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lcpd.connect.edits import EditError, FilePlan
from lcpd.connect.journal import Kept, Undone, applied, decode, encode, undone


class ConnectError(RuntimeError):
    """A client's configuration cannot be changed; the text names the file and the remedy."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    file: Path
    what: str
    """changed, unchanged, created, restored or removed."""
    left: tuple[str, ...] = ()
    """Places that somebody else has changed since, which stay."""


class Records:
    """What was changed for one client, in `folder`; with it everything can be changed back."""

    def __init__(self, folder: Path, client: str) -> None:
        self.file = folder / f"{client}.json"

    def apply(self, plans: tuple[FilePlan, ...]) -> list[Outcome]:
        """Set all that is planned; no file is written unless all can be.  Raises ConnectError."""
        before = self._load()
        current = {file: read(file) for file in {*before, *(plan.file for plan in plans)}}
        kept = [_applied(current[plan.file], before.get(plan.file), plan) for plan in plans]
        # Where a client has its files can change, too.
        stale = {
            file: _undone(current[file], one)
            for file, one in before.items()
            if file not in {plan.file for plan in plans}
        }
        # First the records: whatever happens then, there is a way back.
        self._save([*kept, *(before[file] for file in stale)])
        outcomes = []
        for one in kept:
            outcomes.append(_replace(Path(one.file), current[Path(one.file)], one.after, "changed"))
        for file, back in stale.items():
            outcomes.append(_replace(file, current[file], back.content, "restored", back.left))
        self._save(kept)
        return outcomes

    def undo(self) -> list[Outcome]:
        """Change everything back.  Raises ConnectError; one without records is an error, too."""
        before = self._load()
        if not before:
            raise ConnectError("nothing was changed, so there is nothing to undo")
        current = {file: read(file) for file in before}
        back = {file: _undone(current[file], one) for file, one in before.items()}
        outcomes = [_replace(file, current[file], one.content, "restored", one.left) for file, one in back.items()]
        self.file.unlink()
        return outcomes

    def _load(self) -> dict[Path, Kept]:
        data = read(self.file)
        try:
            return {} if data is None else {Path(kept.file): kept for kept in decode(data)}
        except msgspec.DecodeError as error:
            raise ConnectError(f"{self.file} cannot be read ({error}): it says what was changed; remove it") from error

    def _save(self, kept: list[Kept]) -> None:
        write(self.file, encode(kept))


def _applied(current: bytes | None, kept: Kept | None, plan: FilePlan) -> Kept:
    try:
        return applied(current, kept, plan)
    except EditError as error:
        raise ConnectError(f"{plan.file}: {error}") from error


def _undone(current: bytes | None, kept: Kept) -> Undone:
    try:
        return undone(current, kept)
    except EditError as error:
        raise ConnectError(f"{kept.file}: {error}") from error


def _replace(file: Path, old: bytes | None, new: bytes | None, what: str, left: tuple[str, ...] = ()) -> Outcome:
    if old == new:
        return Outcome(file, "unchanged", left)
    write(file, new)
    if new is None:
        return Outcome(file, "removed", left)
    return Outcome(file, "created" if old is None else what, left)


def read(file: Path) -> bytes | None:
    """A file's bytes; None where there is none.  Raises ConnectError."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConnectError(f"{file} cannot be read: {error.strerror}") from error


def write(file: Path, content: bytes | None) -> None:
    """Replace a file, or remove it, in one step; a link stays one.  Raises ConnectError.

    A new file is for its owner alone, because it can hold a key.
    """
    try:
        target = file.resolve()
        if content is None:
            target.unlink(missing_ok=True)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            if target.exists():
                Path(name).chmod(target.stat().st_mode & 0o7777)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConnectError(f"{file} cannot be written: {error.strerror}") from error
