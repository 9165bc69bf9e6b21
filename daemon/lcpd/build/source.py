"""Where the llama.cpp source comes from: the pinned source distribution, a folder, or a commit.

`identify` is quick and needs no network, so that an up-to-date build is recognised at once; `fetch` may download.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lcpd.build.errors import BuildError
from lcpd.build.fetching import download, run_or_explain
from lcpd.build.hashing import tree_sha256, value_sha256
from lcpd.build.pin import Pin
from lcpd.build.report import Reporter

# What CMake reads of a llama.cpp tree with our options; the rest (models, docs, tests) changes no build.
BUILD_FOLDERS = ("cmake", "common", "ggml", "include", "licenses", "scripts", "src", "tools", "vendor")
BUILD_FILES = ("CMakeLists.txt", "LICENSE", "AUTHORS")
# Chat templates are input for tests and for people who look for a model's template.
TEMPLATES = "models/templates"

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Source:
    """One exact source tree.  ``content`` identifies what is in it, ``place`` where it is compiled from."""

    kind: str
    """``pin``, ``dir`` or ``git``."""
    label: str
    """For people, and part of the build key: file-name safe."""
    content: str
    """Equal contents have equal values; part of the build key."""
    place: str
    """Equal for successive states of one folder, so that an edited tree is compiled incrementally."""
    commit: str | None
    """The llama.cpp commit, where it is known for certain."""
    path: Path | None
    """The tree itself, for ``dir`` only."""


def identify(spec: str | None, pin: Pin) -> Source:
    """What ``--source`` means: None is the pin, ``git:COMMIT`` a commit, anything else a folder.

    Raises `BuildError` for a folder that is no llama.cpp tree and for a commit that is not 40 hex digits.
    """
    if spec is None:
        return Source("pin", pin.commit[:8], f"pin:{pin.sha256}", f"pin:{pin.sha256}", pin.commit, None)
    if spec.startswith("git:"):
        commit = spec.removeprefix("git:")
        if not _COMMIT.fullmatch(commit):
            raise BuildError(
                f"--source {spec}: give the commit in full (40 hex digits): a branch, a tag or a short"
                " commit can mean another tree tomorrow"
            )
        return Source("git", commit[:8], f"git:{commit}", f"git:{commit}", commit, None)
    path = Path(spec).expanduser().resolve()
    if not (path / "CMakeLists.txt").is_file() or not (path / "include" / "llama.h").is_file():
        raise BuildError(f"--source {spec}: {path} is not a llama.cpp source tree (no include/llama.h in it)")
    return Source("dir", "dir", f"dir:{content_hash(path)}", f"dir:{path}", None, path)


def content_hash(tree: Path) -> str:
    """Hash of the files of a llama.cpp tree that take part in a build."""
    return tree_sha256(tree, _build_files(tree))


def _build_files(tree: Path) -> Iterator[Path]:
    for name in BUILD_FILES:
        if (tree / name).is_file():
            yield tree / name
    for folder in BUILD_FOLDERS:
        for parent, names, files in os.walk(tree / folder):
            names[:] = [n for n in names if not n.startswith((".", "build")) and n != "node_modules"]
            yield from (Path(parent) / n for n in files if (Path(parent) / n).is_file())


def location(source: Source, pin: Pin, cache: Path) -> Path:
    """Where the tree is, or will be once it is fetched."""
    if source.path is not None:
        return source.path
    name = f"{pin.package}-{pin.version}" if source.kind == "pin" else "git"
    return cache / "sources" / f"{name}-{value_sha256(source.content)[:12]}"


def fetch(source: Source, pin: Pin, cache: Path, report: Reporter) -> Path:
    """The tree on disk; downloads and unpacks it once into ``cache``.  Raises `BuildError`."""
    target = location(source, pin, cache)
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        work = Path(folder)
        if source.kind == "pin":
            report.say(f"fetching {pin.package} {pin.version} (source distribution, about 75 MB)")
            archive = download(pin.package, pin.version, pin.sha256, work, from_source=True)
            tree = unpack(archive, pin.folder, work / "tree")
        else:
            assert source.commit is not None
            report.say(f"fetching llama.cpp {source.commit} from {pin.repository}")
            tree = _fetch_commit(pin.repository, source.commit, work)
        tree.replace(target)  # atomic: a half-unpacked tree never has this name
    return target


def unpack(archive: Path, folder: str, target: Path) -> Path:
    """Unpacks what a build needs of ``<top>/<folder>/`` in the archive into target, and returns target."""
    wanted = (*BUILD_FILES, *(f"{name}/" for name in BUILD_FOLDERS), f"{TEMPLATES}/")
    with tarfile.open(archive) as tar:
        members = []
        for member in tar:
            inside = member.name.partition("/")[2]
            relative = inside.removeprefix(f"{folder}/")
            if inside != relative and relative.startswith(wanted):
                members.append(member.replace(name=relative))
        if not members:
            raise BuildError(f"{archive.name} has no folder {folder} with a llama.cpp source tree")
        tar.extractall(target, members=members, filter="data")
    return target


def git_commands(repository: str, commit: str, tree: Path) -> list[list[str]]:
    """One commit without history; works for any commit that the server has."""
    git = ["git", "-C", str(tree)]
    return [
        ["git", "init", "--quiet", str(tree)],
        [*git, "fetch", "--quiet", "--depth", "1", repository, commit],
        [*git, "-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    ]


def _fetch_commit(repository: str, commit: str, work: Path) -> Path:
    if shutil.which("git") is None:
        raise BuildError("--source git:... needs git; install it (apt install git)")
    tree = work / "tree"
    for command in git_commands(repository, commit, tree):
        run_or_explain(command, f"could not fetch llama.cpp {commit} from {repository}")
    return tree
