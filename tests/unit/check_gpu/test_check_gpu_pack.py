"""Which versions go into the pack: those of the lock file."""

from __future__ import annotations

from pathlib import Path

import pytest

LOCK = """\
# a comment
msgspec==0.23.0 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via lcpd
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:cc
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
"""


@pytest.fixture
def pack():
    from check_gpu import pack

    return pack


def test_entries_of_the_lock_file_are_read_with_their_hashes(pack):
    first = next(pack.read_lock(LOCK))
    assert (first.name, first.version, first.marker) == ("msgspec", "0.23.0", "")
    assert first.hashes == ("sha256:aa", "sha256:bb")


@pytest.mark.parametrize(("python", "version"), [("3.11", "2.4.6"), ("3.12", "2.5.5"), ("3.13", "2.5.5")])
def test_the_entry_that_holds_for_the_python_is_taken(pack, python, version):
    assert pack.locked_for(list(pack.read_lock(LOCK)), "numpy", python).version == version


def test_a_package_that_is_not_locked_is_an_error(pack):
    from check_gpu.packing import PackError

    with pytest.raises(PackError, match=r"no torch for Python 3\.12"):
        pack.locked_for([], "torch", "3.12")


def test_everything_that_is_carried_is_locked(pack):
    entries = list(pack.read_lock((Path(pack.ROOT) / "requirements.lock").read_text()))
    for name in (pack.BINDINGS, *pack.PURE, *pack.COMPILED):
        for python in pack.PYTHONS:
            assert pack.locked_for(entries, name, python).hashes
    assert pack.locked_for(entries, "numpy", pack.NUMPY_PYTHON).hashes
