"""Files and their index on a real disk: durable before they are listed, private, never unpickled, never in the way."""

from __future__ import annotations

import os
import pickle
import sqlite3
import stat
from pathlib import Path

import pytest

from lcpd.cache import store as store_module
from lcpd.cache.store import DiskStore, Listing, StoreError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "prompts"


def fresh(folder: Path) -> tuple[DiskStore, Listing]:
    store = DiskStore(folder)
    return store, store.open()


def filled(folder: Path, count: int = 3) -> DiskStore:
    store, _ = fresh(folder)
    for number in range(count):
        store.put(f"key-{number}", b"header", [b"state ", bytes([number])])
    return store


def blobs(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*.blob"))


def test_what_was_put_is_listed_and_read_by_the_next_daemon(folder):
    filled(folder).close()
    store, listing = fresh(folder)
    assert {(row.key, row.header, row.size) for row in listing.rows} == {(f"key-{n}", b"header", 13) for n in range(3)}
    with store.read("key-2") as file:
        assert file.read() == b"headerstate \x02"
    store.close()


def test_a_key_that_is_put_again_is_replaced(folder):
    store = filled(folder, 1)
    store.put("key-0", b"other", [b"!"])
    with store.read("key-0") as file:
        assert file.read() == b"other!"
    assert len(blobs(folder)) == 1
    store.close()


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    filled(folder).close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StoreError, match="belongs to user") as error:
        DiskStore(folder).open()
    assert error.value.trouble == "read-only"


def test_a_file_in_the_place_of_the_folder_is_told_of(folder):
    folder.parent.mkdir()
    folder.touch()
    with pytest.raises(StoreError, match="is no folder"):
        DiskStore(folder).open()


def test_nobody_else_can_read_anything(folder):
    store = filled(folder)
    for path in (folder, *folder.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    store.close()


def test_a_folder_that_others_could_read_is_closed_to_them(folder):
    folder.mkdir(parents=True, mode=0o755)
    store, _ = fresh(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    store.close()


def test_the_file_is_on_the_disk_before_the_index_speaks_of_it(folder, monkeypatch):
    store, _ = fresh(folder)
    order = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (order.append(stat.S_ISDIR(os.fstat(fd).st_mode)), real(fd))[1])
    insert = store._index._row_insert
    monkeypatch.setattr(store._index, "_row_insert", lambda *args: (order.append("row"), insert(*args))[1])
    store.put("key", b"header", [b"state"])
    assert order == [False, True, True, "row"]  # the file, its new folder, the folder's folder
    store.close()


def test_the_index_is_synchronous_and_not_mapped(folder):
    store, _ = fresh(folder)
    assert store._index._sql("PRAGMA synchronous").fetchone() == (2,)
    assert store._index._sql("PRAGMA mmap_size").fetchone() == (0,)
    assert store._index.eviction_policy == "none"
    assert store._index.cull_limit == 0
    store.close()


@pytest.mark.parametrize("value", [{"a": 1}, 1, "text", b"bytes", None])
def test_nothing_but_streams_is_stored(folder, value):
    store, _ = fresh(folder)
    with pytest.raises(TypeError):
        store._index.set("key", value)
    with pytest.raises(TypeError):
        store._index.set(("no", "text"), value)
    store.close()


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("boom",)


@pytest.mark.parametrize("column", ["value", "key"])
def test_a_pickle_in_the_index_is_never_loaded(folder, column, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    filled(folder).close()
    with sqlite3.connect(folder / "cache.db") as index:
        if column == "value":
            index.execute("UPDATE Cache SET mode = 4, filename = NULL, value = ?", (pickle.dumps(Bomb()),))
        else:
            index.execute("UPDATE Cache SET key = ?, raw = 0 WHERE key = 'key-0'", (pickle.dumps(Bomb()),))
    index.close()
    store, listing = fresh(folder)
    assert listing.reset
    assert not (tmp_path / "boom").exists()
    store.close()


def test_names_that_lead_elsewhere_are_not_followed(folder, tmp_path):
    filled(folder).close()
    secret = tmp_path / "secret"
    secret.write_text("!")
    with sqlite3.connect(folder / "cache.db") as index:
        index.execute("UPDATE Cache SET filename = '../../secret' WHERE key = 'key-0'")
    index.close()
    store, listing = fresh(folder)
    assert listing.reset
    assert secret.read_text() == "!"
    store.close()


def test_a_row_without_a_file_is_counted_and_removed(folder):
    store = filled(folder)
    store.close()
    blobs(folder)[0].unlink()
    store, listing = fresh(folder)
    assert (len(listing.rows), listing.missing) == (2, 1)
    store.close()
    store, listing = fresh(folder)
    assert (len(listing.rows), listing.missing) == (2, 0)
    store.close()


def test_a_file_without_a_row_is_counted_and_removed(folder):
    store = filled(folder)
    store.close()
    (folder / "00").mkdir(exist_ok=True)
    (folder / "00" / f"{'f' * 30}.blob").write_bytes(b"left over")
    store, listing = fresh(folder)
    assert (len(listing.rows), listing.orphans) == (3, 1)
    assert len(blobs(folder)) == 3
    store.close()


@pytest.mark.parametrize("damage", ["garbage", "truncated", "empty", "no table"])
def test_a_damaged_index_is_made_anew(folder, damage):
    filled(folder).close()
    path = folder / "cache.db"
    data = path.read_bytes()
    if damage == "garbage":
        path.write_bytes(bytes(len(data)))
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"not a database at all")
    else:
        with sqlite3.connect(path) as index:
            index.execute("DROP TABLE Cache")
            index.execute("CREATE TABLE Cache (other)")
        index.close()
    store, listing = fresh(folder)
    assert listing.rows == []
    assert blobs(folder) == []
    store.put("key", b"header", [b"state"])
    store.close()


def test_what_is_not_its_own_is_left_alone_when_it_begins_anew(folder):
    filled(folder).close()
    (folder / "README").write_text("mine")
    (folder / "other").mkdir()
    store, _ = fresh(folder)
    store.clear()
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith("cache.db")) == [
        "README",
        "lock",
        "other",
    ]
    assert blobs(folder) == []
    store.put("key", b"header", [b"state"])
    store.close()


@pytest.mark.parametrize("name", ["go/main.go", "ab/notes.blob", "cd/sub/file", "cache.db.backup"])
def test_a_file_of_somebody_else_in_the_same_folder_is_never_removed(folder, name):
    filled(folder).close()
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("mine")
    store, listing = fresh(folder)
    assert (len(listing.rows), listing.orphans) == (3, 0)
    store.clear()
    assert (folder / name).read_text() == "mine"
    assert blobs(folder) == ([folder / name] if name.endswith(".blob") else [])
    store.close()


def test_a_second_daemon_is_refused(folder):
    store, _ = fresh(folder)
    with pytest.raises(StoreError, match="in use by another daemon") as error:
        DiskStore(folder).open()
    assert error.value.trouble == "in use"
    store.close()
    other, _ = fresh(folder)
    other.close()


def test_removed_files_are_gone(folder):
    store = filled(folder)
    store.remove(["key-0", "key-2", "never there"])
    assert len(blobs(folder)) == 1
    with pytest.raises(FileNotFoundError):
        store.read("key-0")
    store.close()


def test_folders_and_index_are_counted_and_what_the_next_file_adds_to_them(folder):
    store, _ = fresh(folder)
    for number in range(300):
        counted = store.overhead() + store.growth
        store.put(f"key-{number}", b"header" * 100, [b"state"])
        beside = sum(path.lstat().st_blocks for path in folder.rglob("*") if path.suffix != ".blob") * 512
        assert beside <= counted
    assert store.overhead() - beside <= 16 << 10  # the cache's own folder
    store.close()


def test_the_time_of_the_last_use_is_told_to_the_next_daemon(folder):
    store = filled(folder)
    written = {row.key: row.written for row in store._list().rows}
    store.mark_used(["key-1", "never there"], 4e9)
    store.close()
    store, listing = fresh(folder)
    found = {row.key: row for row in listing.rows}
    assert found["key-1"].used == 4e9
    assert found["key-0"].used < 4e9
    assert {key: row.written for key, row in found.items()} == written
    store.close()


@pytest.mark.parametrize(
    ("number", "trouble"), [(28, "full"), (122, "full"), (30, "read-only"), (13, "read-only"), (5, "i/o")]
)
def test_a_write_that_fails_leaves_nothing_behind_and_says_what_is_wrong(folder, monkeypatch, number, trouble):
    store, _ = fresh(folder)

    def fail(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store_module.os, "fsync", fail)
    with pytest.raises(StoreError) as error:
        store.put("key", b"header", [b"state"])
    assert error.value.trouble == trouble
    assert blobs(folder) == []
    monkeypatch.undo()
    store.put("key", b"header", [b"state"])
    store.close()


def test_a_row_that_cannot_be_written_leaves_no_file(folder, monkeypatch):
    store, _ = fresh(folder)
    store._index._sql("PRAGMA query_only = 1")
    with pytest.raises(StoreError) as error:
        store.put("key", b"header", [b"state"])
    assert error.value.trouble == "read-only"
    assert blobs(folder) == []
    store.close()


def test_a_folder_that_cannot_be_made_is_said_to_be_unusable(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"cache\.dir"):
        DiskStore(tmp_path / "file" / "prompts").open()
