"""The unit files of systemd/ as they are installed on a machine: rendered, sealed, written, removed.

Every file that is written begins with a line that holds the checksum of the rest.  So it can be told without any record
elsewhere whether a file is lcpd's and as lcpd wrote it; one that is not is never lost: it is kept beside the new one,
and never removed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

UNITS = ("lcpd.service", "lcpd.socket", "lcpd@.service", "lcpd@.socket")
_FOR_USER_AND_FOLDERS = ("sysusers.d", "tmpfiles.d")
LISTEN = "127.0.0.1:8080"
"""Where lcpd listens if nothing is said."""
_KNOWN_FROM = {"FileDescriptorStorePreserve": 254, "RefreshOnReload": 260}
"""Versions of systemd before which a key is unknown, and would be warned about at every start."""
_SEAL = "# Written by `lcpd systemd install`; changed since if this is not the rest's sha256: "
_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")
"""What a system service does not see: ProtectHome, PrivateTmp."""
_LISTEN = re.compile(r"(/\S+|(\S+:)?[0-9]+)", re.ASCII)
_INSTANCE = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)


@dataclass(frozen=True)
class Machine:
    """What the files depend on."""

    user: bool
    """Whether they are for a user's service manager rather than the system's."""
    program: tuple[str, ...]
    """The command that is `lcpd`."""
    version: int | None
    """Of systemd; None: not known."""


@dataclass(frozen=True)
class File:
    """One file to install."""

    path: Path
    """Where, below the root."""
    text: str
    """Without the seal."""


def folder(user: bool, home: Path) -> Path:
    """Where units of an administrator's or a user's are; `home` is the user's configuration folder."""
    return home / "systemd/user" if user else Path("/etc/systemd/system")


def paths(user: bool, home: Path) -> list[Path]:
    """Of everything that `files` gives."""
    found = [folder(user, home) / name for name in UNITS]
    return found if user else [*found, *(Path("/etc") / kind / "lcpd.conf" for kind in _FOR_USER_AND_FOLDERS)]


def files(machine: Machine, source: Path, home: Path, listen: str) -> list[File]:
    """Everything but the instances' drop-ins.  `source` is systemd/ of lcpd, `home` as for `folder`."""
    units = folder(machine.user, home)
    found = []
    for name in UNITS:
        text = (source / "user" / name if machine.user else source / name).read_text()
        if name == "lcpd.socket":
            text = _with_value(text, "ListenStream", listen)
        if name.endswith(".service"):
            text = _with_value(text, "ExecStart", " ".join([*map(quoted, machine.program), "serve"]))
        found.append(File(units / name, _known(text, machine.version)))
    if not machine.user:
        for kind in _FOR_USER_AND_FOLDERS:
            found.append(File(Path("/etc") / kind / "lcpd.conf", (source / kind / "lcpd.conf").read_text()))
    return found


def drop_in(user: bool, home: Path, instance: str, listen: str) -> File:
    """What says where an instance listens."""
    path = folder(user, home) / f"lcpd@{instance}.socket.d" / "50-listen.conf"
    return File(path, f"[Socket]\nListenStream={listen}\n")


def present_listen(user: bool, home: Path, root: Path) -> str | None:
    """Where the installed lcpd.socket listens; None where there is none of ours."""
    path = below(root, folder(user, home) / "lcpd.socket")
    if not path.is_file() or not is_ours(path.read_bytes()):
        return None
    found = re.search(r"(?m)^ListenStream=(.*)$", path.read_text())
    return found[1] if found else None


def drop_ins(user: bool, home: Path, root: Path) -> list[Path]:
    """Those that exist below `root`."""
    units = below(root, folder(user, home))
    return sorted(units.glob("lcpd@*.socket.d/50-listen.conf"))


def below(root: Path, path: Path) -> Path:
    """An absolute path as it is below another root."""
    return root / path.relative_to("/")


def check_listen(listen: str) -> str | None:
    """Why this is no address to listen on; None where it is one."""
    if _LISTEN.fullmatch(listen) and "%" not in listen:
        return None
    return f"{listen!r} must be HOST:PORT, PORT or an absolute path, without blanks"


def check_instance(instance: str) -> str | None:
    """Why this is no name of an instance; None where it is one."""
    if _INSTANCE.fullmatch(instance) and set(instance) != {"."}:
        return None
    return f"{instance!r} must consist of letters, digits, dots, dashes and underscores"


def out_of_sight(paths: Iterable[Path]) -> list[Path]:
    """Those of the paths that a system service cannot reach."""
    return [path for path in paths if any(path.is_relative_to(hidden) for hidden in _HIDDEN)]


def quoted(word: str) -> str:
    """One word of a command line in a unit file."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w/.:@=+,-]+", escaped, re.ASCII) else f'"{escaped}"'


def _with_value(text: str, key: str, value: str) -> str:
    """The text with another value of a key that it has once."""
    changed, count = re.subn(rf"(?m)^{key}=.*$", lambda _: f"{key}={value}", text)
    assert count == 1, f"{key} is there {count} times"
    return changed


def _known(text: str, version: int | None) -> str:
    """The text without the keys that this version of systemd does not know."""
    unknown = {key for key, first in _KNOWN_FROM.items() if version is not None and version < first}
    return "".join(line for line in text.splitlines(keepends=True) if line.partition("=")[0] not in unknown)


# ---- files on the disk -------------------------------------------------------------------------------------


def sealed(text: str) -> str:
    """The text as it is written."""
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def is_ours(content: bytes) -> bool:
    """Whether this is a file of ours that nobody has changed."""
    try:
        seal, _, text = content.decode().partition("\n")
    except UnicodeDecodeError:
        return False
    return content.decode() == sealed(text) if seal.startswith(_SEAL) else False


def put(path: Path, text: str) -> Path | None:
    """Write a file.  Returns where what was there before is now, if it was not ours or had been changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = None
    if path.is_symlink() or (path.exists() and not is_ours(path.read_bytes())):
        kept = _free(path)
        path.rename(kept)
    new = path.with_name(f".{path.name}.new")
    new.write_text(sealed(text))
    new.chmod(0o644)
    new.rename(path)
    return kept


def take_away(path: Path) -> bool | None:
    """Remove a file; False where it is not ours or has been changed and therefore stays, None where there is none."""
    if not path.exists():
        return None
    if path.is_symlink() or not is_ours(path.read_bytes()):
        return False
    path.unlink()
    return True


def _free(path: Path) -> Path:
    """A name beside `path` that nothing has; no unit's name."""
    number = 1
    while (candidate := path.with_name(f"{path.name}.before-lcpd-{number}")).exists():
        number += 1
    return candidate
