"""Applying and undoing give back the very bytes; what somebody else has changed is left alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_connect_formats import TOML, YAML, json_texts

from lcpd.connect import jsonc
from lcpd.connect.clients import CLIENTS
from lcpd.connect.edits import Edit, EditError, Facts, FilePlan, Member
from lcpd.connect.files import ConnectError, Records, read, write
from lcpd.connect.journal import applied, decode, encode, undone

FACTS = Facts("http://127.0.0.1:8080", "demo:hybrid", 32768, 31130, 8192)
LARGER = Facts("http://127.0.0.1:8080", "demo:hybrid", 65536, 62260, 8192)
HOME = Path("/home/me")
TEXTS = {"json": '{\n  // mine\n  "small_model": "theirs",\n  "env": {"A": "1"}\n}\n', "toml": TOML, "yaml": YAML}


def plans(facts=FACTS):
    return [(name, plan) for name, client in CLIENTS.items() for plan in client.plan(facts, HOME, {}).files]


PLANS = [pytest.param(plan, id=f"{name}-{plan.file.name}") for name, plan in plans()]


@pytest.mark.parametrize("plan", PLANS)
def test_apply_then_undo_gives_back_the_very_bytes(plan):
    before = TEXTS[plan.format].encode()
    kept = applied(before, None, plan)
    assert kept.after != before
    assert undone(kept.after, kept).content == before


@pytest.mark.parametrize("plan", PLANS)
def test_where_there_was_no_file_undo_leaves_none(plan):
    kept = applied(None, None, plan)
    assert undone(kept.after, kept).content is None
    # Nor where the client has written it again in its own way.
    if plan.format == "json":
        rewritten = json.dumps(json.loads(kept.after), indent=7).encode()
        assert undone(rewritten, kept).content is None


@given(json_texts(), st.sampled_from([plan for _, plan in plans() if plan.format == "json"]))
def test_apply_then_undo_gives_back_the_very_bytes_of_any_json(written, plan):
    _, text = written
    kept = applied(text.encode(), None, plan)
    assert undone(kept.after, kept).content == text.encode()


@given(json_texts(), st.sampled_from([plan for _, plan in plans() if plan.format == "json"]))
def test_apply_keeps_all_that_was_there(written, plan):
    document, text = written
    after = jsonc.get(applied(text.encode(), None, plan).after.decode(), ())
    assert {key: after[key] for key in document} == document


@given(json_texts(), st.sampled_from([plan for _, plan in plans() if plan.format == "json"]))
def test_undo_takes_only_ours_away_where_the_file_was_changed_since(written, plan):
    document, text = written
    kept = applied(text.encode(), None, plan)
    changed = jsonc.put(kept.after.decode(), ("added by somebody",), [1])
    back = undone(changed.encode(), kept)
    assert back.left == ()
    assert jsonc.get(back.content.decode(), ()) == {**document, "added by somebody": [1]}


@pytest.mark.parametrize("plan", PLANS)
def test_applying_twice_is_undone_at_once(plan):
    before = TEXTS[plan.format].encode()
    first = applied(before, None, plan)
    second = applied(first.after, first, plan)
    assert second == first
    assert undone(second.after, second).content == before


@pytest.mark.parametrize(("plan", "larger"), [(a[1], b[1]) for a, b in zip(plans(), plans(LARGER), strict=True)])
def test_applying_other_limits_is_undone_to_what_was_there_first(plan, larger):
    before = TEXTS[plan.format].encode()
    first = applied(before, None, plan)
    second = applied(first.after, first, larger)
    assert second.after == applied(before, None, larger).after
    assert undone(second.after, second).content == before


def test_what_somebody_has_changed_since_stays_and_is_told():
    plan = FilePlan(Path("x"), "json", (Edit(("a",), 1), Edit(("b", "c"), 2), Edit(("old",), "new")))
    kept = applied(b'{"old": "old"}', None, plan)
    back = undone(kept.after.replace(b'"a": 1', b'"a": 9'), kept)
    assert back.left == ("a",)
    assert json.loads(back.content) == {"old": "old", "a": 9}


def test_what_a_client_changes_by_itself_is_taken_back_all_the_same():
    plan = FilePlan(Path("x"), "json", (Edit(("a", "time"), "then", "any"),))
    kept = applied(b"{}", None, plan)
    back = undone(kept.after.replace(b"then", b"now"), kept)
    assert (back.left, json.loads(back.content)) == ((), {})


def test_a_member_that_was_added_to_a_list_goes_with_its_name():
    plan = FilePlan(Path("x"), "json", (Edit(("list", Member("id", "m"), "n"), 1),))
    kept = applied(b'{"list": [{"id": "other"}]}', None, plan)
    changed = kept.after.replace(b"{", b"{ ", 1)
    assert json.loads(undone(changed, kept).content) == {"list": [{"id": "other"}]}


def test_records_can_be_written_and_read():
    kept = [applied(TEXTS[plan.format].encode(), None, plan) for _, plan in plans()]
    assert decode(encode(kept)) == kept


def test_what_is_no_text_is_refused():
    plan = FilePlan(Path("x"), "json", (Edit(("a",), 1),))
    with pytest.raises(EditError, match="UTF-8"):
        applied(b"\xff\xfe", None, plan)


# ---- files -----------------------------------------------------------------------------------------------


def plan_for(file: Path, value: object = 1) -> FilePlan:
    return FilePlan(file, "json", (Edit(("a",), value),))


def test_a_new_file_is_for_its_owner_alone_and_an_old_one_keeps_its_mode(tmp_path):
    new, old = tmp_path / "deep" / "new.json", tmp_path / "old.json"
    old.write_text("{}")
    old.chmod(0o644)
    records = Records(tmp_path / "records", "x")
    outcomes = records.apply((plan_for(new), plan_for(old)))
    assert [outcome.what for outcome in outcomes] == ["created", "changed"]
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    assert stat.S_IMODE(old.stat().st_mode) == 0o644
    assert stat.S_IMODE(records.file.stat().st_mode) == 0o600
    assert [outcome.what for outcome in records.undo()] == ["removed", "restored"]
    assert not new.exists() and old.read_text() == "{}" and not records.file.exists()


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "dotfiles").mkdir()
    target, link = tmp_path / "dotfiles" / "a.json", tmp_path / "a.json"
    target.write_text("{}")
    link.symlink_to(target)
    Records(tmp_path, "x").apply((plan_for(link),))
    assert link.is_symlink() and json.loads(target.read_text()) == {"a": 1}


def test_nothing_is_written_unless_all_can_be(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text("{}")
    bad.write_text("{oops")
    records = Records(tmp_path, "x")
    with pytest.raises(ConnectError, match=r"bad\.json: it is no valid JSON"):
        records.apply((plan_for(good), plan_for(bad)))
    assert good.read_text() == "{}" and not records.file.exists()


def test_a_file_that_the_client_no_longer_reads_is_restored_when_another_is_changed(tmp_path):
    first, second = tmp_path / "a.json", tmp_path / "a.jsonc"
    first.write_text("{}")
    records = Records(tmp_path, "x")
    records.apply((plan_for(first),))
    records.apply((plan_for(second),))
    assert first.read_text() == "{}" and second.exists()
    records.undo()
    assert not second.exists()


def test_a_file_that_is_gone_is_not_made_again(tmp_path):
    file = tmp_path / "a.json"
    file.write_text("{}")
    records = Records(tmp_path, "x")
    records.apply((plan_for(file),))
    file.unlink()
    records.undo()
    assert not file.exists()


def test_nothing_to_undo_is_said_so(tmp_path):
    with pytest.raises(ConnectError, match="nothing to undo"):
        Records(tmp_path, "x").undo()


def test_records_that_are_damaged_are_named(tmp_path):
    records = Records(tmp_path, "x")
    write(records.file, b"[{}]")
    with pytest.raises(ConnectError, match=r"x\.json cannot be read"):
        records.undo()


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConnectError, match="cannot be read"):
        read(tmp_path)
