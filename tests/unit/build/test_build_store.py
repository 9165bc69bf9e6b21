"""Builds side by side, the active one, and what a killed build leaves."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from lcpd.build import BuildMissing, active, require_active
from lcpd.build.errors import BuildError
from lcpd.build.fallback import CpuLevel
from lcpd.build.store import Store, sync_recipe
from lcpd.build.use import hold
from lcpd.native import ABI


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("LCPD_HOME", str(tmp_path))
    return Store(tmp_path / "builds")


def quiet(text: str) -> None:
    pass


def finish(store: Store, key: str, tree_key: str = "tree", created: str = "2026-01-01T00:00:00+00:00") -> None:
    """A finished build, as `lcpd build` leaves it."""
    staged = store.stage(key)
    (staged / "lib").mkdir()
    manifest = {
        "format": 1,
        "key": key,
        "tree_key": tree_key,
        "backend": "cpu",
        "llama_cpp": "b0-abc",
        "abi": ABI,
        "cpu_level": "native",
        "devices": ["CPU"],
        "created": created,
    }
    (staged / "build.json").write_text(json.dumps(manifest))
    store.tree(tree_key).mkdir(parents=True, exist_ok=True)
    store.commit(staged, key)


def test_without_a_build_the_error_says_what_to_run(store) -> None:
    assert active() is None
    with pytest.raises(BuildMissing, match="run: lcpd build"):
        require_active()


def test_the_activated_build_is_the_active_one(store) -> None:
    finish(store, "a")
    finish(store, "b")
    store.activate("a")
    store.activate("b")
    found = require_active()
    assert (found.key, found.abi, found.devices) == ("b", ABI, ("CPU",))
    assert found.lib_dir == store.root / "b" / "lib"


def test_a_build_once_returned_is_not_changed_by_a_later_activation(store) -> None:
    finish(store, "a")
    finish(store, "b")
    store.activate("a")
    found = require_active()
    store.activate("b")
    assert found.path == (store.root / "a").resolve()


def test_a_link_to_a_build_that_is_gone_counts_as_no_build(store) -> None:
    finish(store, "a")
    store.activate("gone")
    assert active() is None


def test_a_manifest_of_another_format_counts_as_no_build(store) -> None:
    finish(store, "a")
    store.activate("a")
    path = store.root / "a" / "build.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    assert active() is None


def test_a_build_of_another_bridge_abi_is_refused_with_the_remedy(store) -> None:
    finish(store, "a")
    store.activate("a")
    path = store.root / "a" / "build.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "abi": 99}))
    with pytest.raises(BuildMissing, match=r"ABI 99, this lcpd needs \d+; run: lcpd build"):
        require_active()


def test_the_peer_is_there_only_when_it_was_built(store) -> None:
    finish(store, "a")
    store.activate("a")
    assert require_active().peer is None
    server = store.root / "a" / "bin" / "llama-server"
    server.parent.mkdir()
    server.touch()
    assert require_active().peer == server


def test_builds_are_listed_newest_first_without_staged_ones(store) -> None:
    finish(store, "old", created="2026-01-01T00:00:00+00:00")
    finish(store, "new", created="2026-02-01T00:00:00+00:00")
    store.activate("old")
    store.stage("half")
    assert [b.key for b in store.builds()] == ["new", "old"]


def test_a_finished_build_replaces_one_of_the_same_key(store) -> None:
    finish(store, "a", created="2026-01-01T00:00:00+00:00")
    finish(store, "a", created="2026-03-01T00:00:00+00:00")
    assert [b.created for b in store.builds()] == ["2026-03-01T00:00:00+00:00"]
    assert list(store.root.glob(".old-*")) == []


def test_removing_a_build_takes_its_tree_when_no_other_build_came_from_it(store) -> None:
    finish(store, "a", tree_key="shared")
    finish(store, "b", tree_key="shared")
    store.remove("a", force=False)
    assert store.tree("shared").is_dir()
    store.remove("b", force=False)
    assert not store.tree("shared").exists()


def test_the_active_build_is_removed_by_force_only(store) -> None:
    finish(store, "a")
    store.activate("a")
    with pytest.raises(BuildError, match="is the active build"):
        store.remove("a", force=False)
    store.remove("a", force=True)
    assert active() is None


def test_a_build_that_a_daemon_runs_from_is_removed_by_force_only(store) -> None:
    finish(store, "a")
    held = hold(store.find("a"))
    with pytest.raises(BuildError, match="runs from a"):
        store.remove("a", force=False)
    os.close(held)
    store.remove("a", force=False)
    assert store.builds() == []


def test_old_builds_go_but_not_the_active_one_nor_one_that_a_daemon_runs_from(store) -> None:
    for day in range(1, 8):
        finish(store, f"day {day}", created=f"2026-01-0{day}T00:00:00+00:00")
    store.activate("day 1")
    held = hold(store.find("day 3"))
    assert store.prune(2) == ["day 5", "day 4", "day 2"]
    assert [build.key for build in store.builds()] == ["day 7", "day 6", "day 3", "day 1"]
    os.close(held)
    assert store.prune(2) == ["day 3"]


@pytest.mark.parametrize("key", ["nosuch", "../builds", "active", "trees"])
def test_only_a_finished_build_can_be_removed(store, key: str) -> None:
    finish(store, "a")
    store.activate("a")
    with pytest.raises(BuildError, match="there is no build"):
        store.remove(key, force=True)
    assert active() is not None


def test_a_build_killed_while_staging_leaves_nothing_to_the_next(store) -> None:
    store.stage("half")
    with store.locked(quiet):
        assert list(store.root.glob(".staging-*")) == []


def test_a_build_killed_between_the_two_renames_is_restored(store) -> None:
    finish(store, "a")
    (store.root / "a").rename(store.root / ".old-a")
    with store.locked(quiet):
        assert store.find("a") is not None


def test_a_second_builder_waits_and_says_so(store) -> None:
    store.root.mkdir(parents=True)
    said: list[str] = []
    waiting, entered = threading.Event(), threading.Event()

    def second() -> None:
        def say(text: str) -> None:
            said.append(text)
            waiting.set()

        with store.locked(say):
            entered.set()

    with (store.root / "lock").open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        assert not entered.is_set()
    thread.join(10)
    assert entered.is_set()
    assert "another lcpd build is running" in said[0]


def test_a_level_is_remembered_for_its_machine_only(store) -> None:
    store.root.mkdir(parents=True)
    store.remember_level("vm", CpuLevel.NATIVE_NO_AMX)
    assert store.remembered_level("vm") is CpuLevel.NATIVE_NO_AMX
    assert store.remembered_level("other") is CpuLevel.NATIVE


def make_recipe(root: Path) -> Path:
    (root / "bridge").mkdir(parents=True)
    for name in ("CMakeLists.txt", "bridge/a.cpp", "bridge/a.h", "pin.toml"):
        (root / name).write_text(name)
    return root


def test_only_changed_recipe_files_are_written_so_that_ninja_compiles_those(tmp_path) -> None:
    recipe, copy = make_recipe(tmp_path / "recipe"), tmp_path / "copy"
    sync_recipe(recipe, copy)
    before = {p.name: p.stat().st_mtime_ns for p in copy.rglob("*") if p.is_file()}
    assert set(before) == {"CMakeLists.txt", "a.cpp", "a.h"}
    (recipe / "bridge" / "a.cpp").write_text("changed")
    sync_recipe(recipe, copy)
    changed = {p.name for p in copy.rglob("*") if p.is_file() and p.stat().st_mtime_ns != before[p.name]}
    assert changed == {"a.cpp"}


def test_a_file_deleted_from_the_recipe_is_deleted_from_the_copy(tmp_path) -> None:
    recipe, copy = make_recipe(tmp_path / "recipe"), tmp_path / "copy"
    sync_recipe(recipe, copy)
    (recipe / "bridge" / "a.cpp").unlink()
    sync_recipe(recipe, copy)
    assert not (copy / "bridge" / "a.cpp").exists()
