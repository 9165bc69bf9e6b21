"""The builds folder: finished builds side by side, the ``active`` link, compile trees, logs, and the lock.

<builds>/<key>/            a finished build (lib/, bin/, build.json); appears whole or not at all
<builds>/active            link to one of them
<builds>/trees/<tree key>/ recipe copy and CMake tree; kept so that changes compile quickly
<builds>/logs/<key>.log
<builds>/machine.json      which CPU level works on which machine
<builds>/lock              held by the one process that builds or removes
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lcpd.build.errors import BuildError
from lcpd.build.fallback import CpuLevel
from lcpd.build.record import ACTIVE, MANIFEST, Build, read_build
from lcpd.build.use import is_in_use


@dataclass(frozen=True)
class Store:
    """All paths and changes of one builds folder.  Changes need `locked`; reading does not."""

    root: Path

    # ---- places
    def build_path(self, key: str) -> Path:
        return self.root / key

    def tree(self, tree_key: str) -> Path:
        return self.root / "trees" / tree_key

    def log(self, key: str) -> Path:
        return self.root / "logs" / f"{key}.log"

    # ---- reading
    def find(self, key: str) -> Build | None:
        return read_build(self.build_path(key))

    def builds(self) -> list[Build]:
        """All finished builds, the newest first."""
        if not self.root.is_dir():
            return []
        found = [read_build(p) for p in self.root.iterdir() if not p.is_symlink() and not p.name.startswith(".")]
        return sorted((b for b in found if b is not None), key=lambda b: b.created, reverse=True)

    def active_key(self) -> str | None:
        link = self.root / ACTIVE
        return link.readlink().name if link.is_symlink() else None

    def remembered_level(self, machine: str) -> CpuLevel:
        """The level that the last self-test on this machine settled on."""
        return CpuLevel(self._machines().get(machine, CpuLevel.NATIVE))

    # ---- changing
    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """Waits for other builds to finish; also repairs what a killed one left behind."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another lcpd build is running; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            self._repair()
            yield

    def _repair(self) -> None:
        for staged in self.root.glob(".staging-*"):
            shutil.rmtree(staged)
        for old in self.root.glob(".old-*"):
            current = self.build_path(old.name.removeprefix(".old-"))
            if current.exists():
                shutil.rmtree(old)
            else:
                old.rename(current)

    def stage(self, key: str) -> Path:
        """A new empty folder on the same file system; `commit` makes it the build of this key."""
        path = self.root / f".staging-{key}"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def commit(self, staged: Path, key: str) -> None:
        """Renames the staged folder into place, replacing a build of the same key."""
        target, old = self.build_path(key), self.root / f".old-{key}"
        if target.exists():
            target.rename(old)
        staged.rename(target)
        if old.exists():
            shutil.rmtree(old)

    def activate(self, key: str) -> None:
        """Points the ``active`` link at this build, atomically."""
        fresh = self.root / f".{ACTIVE}-{os.getpid()}"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(key)
        fresh.replace(self.root / ACTIVE)

    def remember_level(self, machine: str, level: CpuLevel) -> None:
        machines = {**self._machines(), machine: level.value}
        write_json(self.root / "machine.json", machines)

    def prune(self, keep: int) -> list[str]:
        """Deletes all builds but the active one, the newest `keep` others, and those in use; returns their keys."""
        others = [build for build in self.builds() if build.key != self.active_key()]
        old = [build.key for build in others[keep:] if not is_in_use(build.path)]
        for key in old:
            self.remove(key, force=False)
        return old

    def remove(self, key: str, force: bool) -> None:
        """Deletes a build, its log, and its compile tree when no other build came from it.

        Raises `BuildError`, also where it is active or in use unless `force`.
        """
        build = self.find(key)
        if build is None or build.key != key:  # "active" leads to a build too, but is not its key
            raise BuildError(f"there is no build {key!r}; lcpd build --list shows them")
        if key == self.active_key():
            if not force:
                raise BuildError(f"{key} is the active build; build another one first, or add --force")
            (self.root / ACTIVE).unlink()
        if is_in_use(build.path) and not force:
            raise BuildError(f"an lcpd runs from {key}; stop that one first, or add --force")
        tree_key = tree_key_of(build.path)
        shutil.rmtree(build.path)
        self.log(key).unlink(missing_ok=True)
        if tree_key not in {tree_key_of(b.path) for b in self.builds()}:
            shutil.rmtree(self.tree(tree_key), ignore_errors=True)

    def _machines(self) -> dict[str, str]:
        path = self.root / "machine.json"
        if not path.is_file():
            return {}
        machines: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        return machines


def tree_key_of(build: Path) -> str:
    key: str = json.loads((build / MANIFEST).read_text(encoding="utf-8"))["tree_key"]
    return key


def write_json(path: Path, value: object) -> None:
    """Writes and renames, so that a reader sees the old text or the new one."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    fresh.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


def disk_usage(folder: Path) -> int:
    """Bytes of the files below, links not followed and hard links counted."""
    return sum(p.lstat().st_size for p in folder.rglob("*") if not p.is_dir()) if folder.is_dir() else 0


def sync_recipe(recipe: Path, copy: Path) -> None:
    """Makes ``copy`` equal to CMakeLists.txt and bridge/ of the recipe.

    Files with equal contents are left alone, so that ninja compiles the changed ones only; the copy also keeps a
    running build apart from edits made meanwhile.
    """
    wanted = {p.relative_to(recipe) for p in recipe_files(recipe)}
    for relative in wanted:
        target = copy / relative
        data = (recipe / relative).read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    for path in list(copy.rglob("*")):
        if path.is_file() and path.relative_to(copy) not in wanted:
            path.unlink()


def recipe_files(recipe: Path) -> list[Path]:
    """What our part of the build consists of."""
    bridge = [p for p in (recipe / "bridge").iterdir() if p.suffix in (".cpp", ".h")]
    return [recipe / "CMakeLists.txt", *sorted(bridge)]
