"""Damage to the files of a real store, and a daemon that has to find all of it.

A store is filled with conversations that share nothing, so that one damaged file in each does not hide another one:
what builds on a bad file is not looked at any more.  Damage is done to what the conversation's prompt will be resumed
from, between two daemons.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harm.load import Ask, Said, ask

from faults.served import served
from lcpd.cache.record import Header, decode, encode
from oracle.tables import table

INTERVAL = 256
"""Tokens between checkpoints."""
_LENGTH = 800
"""Tokens of a conversation."""
_REPLY = 8
_OWN = ("room", "expired", "purged", "unlinked")
"""Reasons for which files are removed without being bad themselves."""

Damage = Callable[["Blob", "Store", random.Random], None]


@dataclass(frozen=True)
class Blob:
    """One file of a store."""

    key: str
    path: Path
    header: Header

    @property
    def size(self) -> int:
        return self.path.stat().st_size


class Store:
    """A folder as a daemon left it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "cache.db"
        self.damaged: set[str] = set()
        """Keys of files that something was done to."""
        with closing(sqlite3.connect(self.database)) as connection:
            rows = connection.execute("SELECT key, filename FROM Cache WHERE filename IS NOT NULL").fetchall()
        self.blobs = {key: Blob(key, folder / name, decode((folder / name).read_bytes())) for key, name in rows}

    def targets(self) -> list[list[Blob]]:
        """For each conversation the files that its prompt needs: its deepest checkpoint, and the segments below."""
        groups: dict[str, list[Blob]] = {}
        for key in sorted(self.blobs):
            groups.setdefault(self._root(key), []).append(self.blobs[key])
        found = []
        for root in sorted(groups):
            # What lies behind the prompt is that of its reply, to which nobody goes back here.
            checkpoints = [
                blob
                for blob in groups[root]
                if blob.header.record.kind == "checkpoint" and blob.header.record.end < _LENGTH
            ]
            if checkpoints:
                last = max(checkpoints, key=lambda blob: blob.header.record.end)
                end = last.header.record.end
                below = [b for b in groups[root] if b.header.record.kind == "segment" and b.header.record.begin < end]
                found.append([last, *below])
        return found

    def _root(self, key: str) -> str:
        while parent := self.blobs[key].header.record.parent:
            key = parent
        return key

    def sql(self, statement: str, *values: Any) -> None:
        """Change the index behind the daemon's back."""
        with closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute(statement, values)


def _flip(path: Path, at: int, mask: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ mask]))


def flip_in_header(blob: Blob, store: Store, draw: random.Random) -> None:
    """One bit."""
    _flip(blob.path, draw.randrange(blob.header.length), 1 << draw.randrange(8))


def flip_in_state(blob: Blob, store: Store, draw: random.Random) -> None:
    """One bit."""
    _flip(blob.path, draw.randrange(blob.header.length, blob.size), 1 << draw.randrange(8))


def truncate(blob: Blob, store: Store, draw: random.Random) -> None:
    """Anywhere, to nothing too."""
    os.truncate(blob.path, draw.choice([0, draw.randrange(blob.size), blob.size - 1]))


def lengthen(blob: Blob, store: Store, draw: random.Random) -> None:
    """A few bytes more."""
    with blob.path.open("ab") as file:
        file.write(draw.randbytes(draw.randint(1, 4096)))


def tear(blob: Blob, store: Store, draw: random.Random) -> None:
    """The length is right, but the blocks from some point on were never written."""
    size = blob.size
    os.truncate(blob.path, draw.randrange(blob.header.length, size - 64))
    os.truncate(blob.path, size)


def delete(blob: Blob, store: Store, draw: random.Random) -> None:
    """The file is gone."""
    blob.path.unlink()


def other_fingerprint(blob: Blob, store: Store, draw: random.Random) -> None:
    """A whole file with right checksums, of another model, in this one's place."""
    record = blob.header.record
    name = draw.choice(sorted(record.fingerprint))
    value = record.fingerprint[name]
    changed = (chr(ord(value[0]) ^ 1) + value[1:]) if value else "x"
    fingerprint = {**record.fingerprint, name: changed}
    header = encode(_replaced(record, fingerprint=fingerprint), blob.header.state)
    blob.path.write_bytes(header + blob.path.read_bytes()[blob.header.length :])


def other_tokens(blob: Blob, store: Store, draw: random.Random) -> None:
    """A whole file with right checksums whose path differs in one token."""
    record = blob.header.record
    tokens = bytearray(record.tokens)
    tokens[4 * draw.randrange(len(tokens) // 4)] ^= 1
    header = encode(_replaced(record, tokens=bytes(tokens)), blob.header.state)
    blob.path.write_bytes(header + blob.path.read_bytes()[blob.header.length :])


def other_file(blob: Blob, store: Store, draw: random.Random) -> None:
    """A whole, sound file of another entry, of the same length where there is one."""
    others = [other for other in store.blobs.values() if other.key not in store.damaged and other.key != blob.key]
    same = [other for other in others if other.size == blob.size]
    source = draw.choice(same or others)
    blob.path.write_bytes(source.path.read_bytes())


def index_header(blob: Blob, store: Store, draw: random.Random) -> None:
    """One bit of the header's copy in the index."""
    with closing(sqlite3.connect(store.database)) as connection:
        ((value,),) = connection.execute("SELECT value FROM Cache WHERE key = ?", (blob.key,)).fetchall()
    data = bytearray(value)
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    store.sql("UPDATE Cache SET value = ? WHERE key = ?", bytes(data), blob.key)


def no_row(blob: Blob, store: Store, draw: random.Random) -> None:
    """The index knows nothing of the file."""
    store.sql("DELETE FROM Cache WHERE key = ?", blob.key)


KINDS: Mapping[str, tuple[Damage, frozenset[str]]] = {
    "a flipped bit in the header": (flip_in_header, frozenset({"damaged"})),
    "a flipped bit in the state": (flip_in_state, frozenset({"damaged"})),
    "truncated": (truncate, frozenset({"truncated"})),
    "lengthened": (lengthen, frozenset({"truncated"})),
    "torn": (tear, frozenset({"damaged"})),
    "deleted": (delete, frozenset({"missing"})),
    "wrong fingerprint": (other_fingerprint, frozenset({"fingerprint"})),
    "wrong tokens": (other_tokens, frozenset({"swapped"})),
    "swapped": (other_file, frozenset({"swapped", "truncated", "damaged"})),
    "a flipped bit in the index": (index_header, frozenset({"damaged"})),
    "no row": (no_row, frozenset({"orphan"})),
}
"""What is done, and the reasons under which it may be counted."""


def _replaced(record: Any, **changes: Any) -> Any:
    import msgspec

    return msgspec.structs.replace(record, **changes)


@dataclass
class Damages:
    """What came of damaging files."""

    done: Counter[str] = field(default_factory=Counter)
    """By kind."""
    counted: Counter[str] = field(default_factory=Counter)
    """By the daemon, by reason."""
    replies: list[Said] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Damage that was not found, or found under another name."""

    @property
    def corruptions(self) -> int:
        """Files."""
        return sum(self.done.values())

    def __str__(self) -> str:
        errors = sum(bool(said.error) for said in self.replies)
        return (
            f"{self.corruptions} corruptions ({dict(self.done)}), counted as {dict(self.counted)}; "
            f"{len(self.replies)} replies, {errors} errors; {len(self.problems)} rounds in which something was missed"
        )


def strangers(tokenize: Callable[[str], Sequence[int]], seed: int, number: int) -> list[int]:
    """A prompt that shares not even its first token with those of other numbers, whose reply depends on all of it."""
    text = tokenize(table(1000 * seed + number, 2 * _LENGTH // 7))
    return [300 + number, *text[1 - _LENGTH :]]


def settings(folder: Path) -> dict[str, Any]:
    cache = {"dir": folder, "disk": 1 << 30, "disk_floor": 0, "ram": 256 << 20, "checkpoint_interval": INTERVAL}
    cache["prewarm"] = 0  # files are read when a prompt asks for them
    return {"model": {"slots": 2, "batch": 256, "ubatch": 256}, "cache": cache, "log": {"level": "error"}}


async def fill(folder: Path, prompts: Sequence[list[int]]) -> None:
    """Leave a store with a conversation for each prompt."""
    async with served("hybrid", **settings(folder)) as daemon:
        for prompt in prompts:
            said = await ask(daemon.client, daemon.url, Ask(prompt, _REPLY))
            assert not said.error, said.error


async def corruptions(
    tokenize: Callable[[str], Sequence[int]], seed: int, count: int, conversations: int, folder: Path
) -> Damages:
    """Rounds of damage to one file of each conversation, until `count` files were damaged."""
    prompts = [strangers(tokenize, seed, number) for number in range(conversations)]
    pristine = folder / "pristine"
    await fill(pristine, prompts)
    found = len(Store(pristine).targets())
    assert found >= 0.9 * conversations, f"only {found} of {conversations} conversations were stored"
    result = Damages()
    for number in _numbers(lambda: result.corruptions < count):
        copy = folder / f"round-{number}"
        shutil.copytree(pristine, copy)
        await _round(copy, prompts, random.Random(f"{seed} {number}"), result)
        shutil.rmtree(copy)
    return result


def _numbers(go_on: Callable[[], bool]) -> Iterator[int]:
    number = 0
    while go_on():
        yield number
        number += 1


async def _round(folder: Path, prompts: Sequence[list[int]], draw: random.Random, result: Damages) -> None:
    store = Store(folder)
    allowed: list[frozenset[str]] = []
    targets = store.targets()
    kinds = (sorted(KINDS) * (len(targets) // len(KINDS) + 1))[: len(targets)]
    draw.shuffle(kinds)
    for files, kind in zip(targets, kinds, strict=True):
        damage, reasons = KINDS[kind]
        victim = draw.choice(files)
        damage(victim, store, draw)
        store.damaged.add(victim.key)
        result.done[kind] += 1
        allowed.append(reasons)
    async with served("hybrid", **settings(folder)) as daemon:
        for prompt in prompts:
            result.replies.append(await ask(daemon.client, daemon.url, Ask(prompt, _REPLY)))
        stats = daemon.context.disk.stats()
    counted = {reason: n for reason, n in stats.counts.removed.items() if reason not in _OWN and n}
    result.counted.update(counted)
    if problem := _mismatch(allowed, counted):
        result.problems.append(f"{problem}; {stats}")
    if stats.state != "ok":
        result.problems.append(f"the disk is {stats.state}: {stats.reason}")


def _mismatch(allowed: list[frozenset[str]], counted: Mapping[str, int]) -> str:
    """Why these counts cannot be those of damage that is counted under one of these reasons each; "": they can."""
    total = sum(counted.values())
    if total != len(allowed):
        return f"{len(allowed)} files were damaged, {total} were found: {dict(counted)}"
    for reason, count in counted.items():
        if count > sum(reason in reasons for reasons in allowed):
            return f"{count} were counted as {reason}, which so many cannot be: {dict(counted)}"
    for reasons in set(allowed):
        only = sum(other <= reasons for other in allowed)
        if sum(counted.get(reason, 0) for reason in reasons) < only:
            return f"{only} must be among {sorted(reasons)}: {dict(counted)}"
    return ""
