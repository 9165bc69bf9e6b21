"""API keys: what a key file says, and which key a request carries.  Pure.

A key file has one key a line::

    # comment
    KEY
    NAME KEY [priority=background] [concurrency=2] [rate=30/m]
    NAME sha256:HEX [...]

HEX is the SHA-256 of a key, so that the key itself need not lie on the machine.  The daemon keeps no more than that of
any key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

LONGEST_NAME = 32
OPTIONS = "priority=interactive|background, concurrency=N, rate=N/s|m|h|d"
_HASHED = "sha256:"
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_NAME - 1}}}")
_OPTION = re.compile(r"([a-z]+)=([^=].*)")
"""Unlike the padding at the end of a key in base64."""
_RATE = re.compile(r"([1-9][0-9]{0,8})/([smhd])")
_COUNT = re.compile(r"[1-9][0-9]{0,8}")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class KeyFileError(ValueError):
    """A key file cannot be used.  `problems` has one line for each mistake, none of which shows a key."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Rate:
    """At most `count` requests at once, and one more each `seconds` / `count`."""

    count: int
    seconds: int


@dataclass(frozen=True)
class Key:
    """Whom requests are from, and what they may do."""

    name: str
    """For logs, metrics and `GET /slots`: at most `LONGEST_NAME` of A-Z a-z 0-9 . _ -"""
    digest: str
    """SHA-256 of the key, in hex."""
    background: bool = False
    """Whether all its requests are background ones, whatever they say."""
    concurrency: int = 0
    """Requests under way at once; 0: any number."""
    rate: Rate | None = None
    admin: bool = False


@dataclass(frozen=True)
class Line:
    """One key of a key file."""

    number: int
    key: Key
    named: bool
    """Whether the line has the key's name."""
    secret: str | None = field(repr=False)
    """The key itself; None where the line has only its hash."""


def new_key() -> str:
    """A key that nobody can guess."""
    return f"lcpd-{secrets.token_urlsafe(32)}"


def digest_of(secret: str) -> str:
    """What `Key.digest` is for a key; the text may have surrogates, as HTTP headers have them."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def is_name(text: str) -> bool:
    """Whether a key may be called so."""
    return _NAME.fullmatch(text) is not None


def read_keys(text: str, where: str) -> tuple[Line, ...]:
    """The keys of a key file's text; `where` names it in errors.  Raises KeyFileError with all mistakes."""
    lines: list[Line] = []
    problems: list[str] = []
    for number, row in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        words = re.sub(r"(^|\s)#.*", "", row).split()
        if not words:
            continue
        try:
            line = _line(number, words)
            _refuse_twice(line, lines)
        except ValueError as error:
            problems.append(f"{where}:{number}: {error}")
        else:
            lines.append(line)
    if problems:
        raise KeyFileError(problems)
    return tuple(lines)


def _line(number: int, words: Sequence[str]) -> Line:
    """Raises ValueError."""
    if len(words) == 1:
        secret, digest = _secret(words[0])
        return Line(number, Key(f"key-{digest[:8]}", digest), False, secret)
    name, second, *options = words
    if not is_name(name):
        raise ValueError(
            f"the name is not one: write NAME KEY, the name with at most {LONGEST_NAME} of A-Z a-z 0-9 . _ -"
        )
    if second.lower().startswith(_HASHED):
        pass
    elif found := _OPTION.fullmatch(second):
        raise ValueError(f"{found[1]}= stands where the key belongs: write NAME KEY {found[1]}=...")
    secret, digest = _secret(second)
    return Line(number, _with_options(Key(name, digest), options), True, secret)


def _secret(word: str) -> tuple[str | None, str]:
    """The key, and its digest."""
    if not word.lower().startswith(_HASHED):
        return word, digest_of(word)
    digest = word[len(_HASHED) :].lower()
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError("sha256: must be followed by 64 hexadecimal digits; `lcpd key new NAME` prints such a line")
    return None, digest


def _with_options(key: Key, options: Iterable[str]) -> Key:
    seen: set[str] = set()
    for option in options:
        found = _OPTION.fullmatch(option)
        if not found:
            # It may be a key, so it is not repeated here.
            raise ValueError(f"what follows the key is no option; there are {OPTIONS}")
        name, value = found.groups()
        if name in seen:
            raise ValueError(f"{name}= is there twice; leave one")
        seen.add(name)
        if name == "priority" and value in ("interactive", "background"):
            key = replace(key, background=value == "background")
        elif name == "concurrency" and _COUNT.fullmatch(value):
            key = replace(key, concurrency=int(value))
        elif name == "rate" and (rate := _RATE.fullmatch(value)):
            key = replace(key, rate=Rate(int(rate[1]), _SECONDS[rate[2]]))
        else:
            what = "cannot be read" if name in ("priority", "concurrency", "rate") else "is no option"
            raise ValueError(f"{name}= {what}; there are {OPTIONS}")
    return key


def _refuse_twice(line: Line, before: Iterable[Line]) -> None:
    """Raises ValueError."""
    for other in before:
        if other.key.digest == line.key.digest:
            raise ValueError(f"the same key as in line {other.number}; remove one of them")
        if other.key.name == line.key.name:
            raise ValueError(f"{line.key.name} is the name of the key in line {other.number}, too; choose another")


class Keyring:
    """All keys of a daemon.  An admin's key is also an API key."""

    def __init__(self, api: Iterable[Key] = (), admin: Iterable[Key] = ()) -> None:
        """One that is among both is an admin's.  ValueError where two different keys have one name."""
        admins = {key.digest: replace(key, admin=True) for key in admin}
        users = {key.digest: key for key in api}
        self.asked_for = bool(users)
        """Whether a request needs a key."""
        self.has_admins = bool(admins)
        self.keys = tuple({**users, **admins}.values())
        names = [key.name for key in self.keys]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two keys are called {twice}; give one of them another name")

    def become(self, other: Keyring) -> None:
        """Have the keys of another one from now on."""
        self.keys, self.asked_for, self.has_admins = other.keys, other.asked_for, other.has_admins

    def find(self, authorization: str | None, x_api_key: str | None) -> Key | None:
        """The key that a request carries, as a bearer token or in x-api-key; of two an admin's, else the former."""
        scheme, _, token = (authorization or "").partition(" ")
        given = [token.strip()] if scheme.lower() == "bearer" else []
        given += [x_api_key] if x_api_key else []
        digests = [digest_of(one) for one in given]
        # Every comparison runs, so that the time tells nothing.
        found = [key for digest in digests for key in self.keys if hmac.compare_digest(digest, key.digest)]
        return next((key for key in found if key.admin), found[0] if found else None)
