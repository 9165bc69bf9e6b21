"""The prompt cache as users see it: reports, the tree, pins, with a real model."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest

from support import text_of

pytestmark = pytest.mark.native

ADMIN = {"Authorization": "Bearer the-admins"}


@pytest.fixture
def daemon(start_daemon, tmp_path):
    (tmp_path / "admin").write_text("the-admins\n")
    return start_daemon("--slots", "1", LCPD_SERVER__ADMIN_KEY_FILE=str(tmp_path / "admin"))


def get(daemon, path: str, **headers: str) -> dict:
    response = httpx.get(f"{daemon.url}{path}", headers=headers, timeout=30)
    assert response.status_code == 200, response.text
    return response.json()


def lcpd_cache(daemon, tmp_path, *arguments: str) -> str:
    command = [sys.executable, "-m", "lcpd", "cache", "--url", daemon.url, "--api-key-file", str(tmp_path / "admin")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def dated(daemon, day: str) -> dict:
    """A chat whose system text names the day."""
    messages = [
        {"role": "system", "content": f"{text_of(100)} Today is {day}. {text_of(100, seed=1)}"},
        {"role": "user", "content": "Hello"},
    ]
    body = {"messages": messages, "max_tokens": 4, "temperature": 0}
    return httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=60).json()


def test_why_a_prompt_was_computed_again_is_told_with_the_texts(daemon, tmp_path):
    dated(daemon, "Monday")
    answer = dated(daemon, "Tuesday")
    (part,) = [one for one in answer["timings"]["cache"]["why"] if one["reason"] == "diverged"]
    assert part["role"] == "system"
    assert 100 < part["position"] < part["end"]
    report = get(daemon, f"/cache/requests/{answer['id']}", **ADMIN)
    (shown,) = [one for one in report["why"] if one["reason"] == "diverged"]
    assert "Today is" in shown["text"]["before"]
    assert shown["text"]["theirs"].lstrip().startswith("M")
    assert shown["text"]["ours"].lstrip().startswith("T")
    words = lcpd_cache(daemon, tmp_path, "why", answer["id"])
    assert f"token {part['position']:,} in the system message" in words
    assert "became" in words


def test_nobody_else_is_shown_texts(daemon):
    dated(daemon, "Monday")
    answer = dated(daemon, "Tuesday")
    for path in (f"/cache/requests/{answer['id']}", "/cache"):
        text = httpx.get(f"{daemon.url}{path}", timeout=30).text
        assert "Today" not in text
        assert '"text"' not in text
        assert '"starts"' not in text
        assert '"ours"' not in text


def test_the_tree_shows_two_conversations_with_one_head(daemon, tmp_path):
    dated(daemon, "Monday")
    dated(daemon, "Tuesday")
    view = get(daemon, "/cache", **ADMIN)
    branches = {branch["id"]: branch for branch in view["branches"]}
    children = [branch for branch in branches.values() if branch["parent"] is not None]
    assert len(children) >= 2
    for child in children:
        parent = branches[child["parent"]]
        assert child["begin"] == parent["begin"] + parent["tokens"]
    assert view["ram"]["checkpoints"] > 0
    assert "You" in view["branches"][0]["text"] or "system" in view["branches"][0]["text"]
    assert "checkpoints" in lcpd_cache(daemon, tmp_path)


def test_a_conversation_is_pinned_and_unpinned_by_the_command(daemon, tmp_path):
    (tmp_path / "chat.json").write_text('{"messages": [{"role": "user", "content": "Hello"}]}')
    assert lcpd_cache(daemon, tmp_path, "pin", str(tmp_path / "chat.json")).startswith("pin ")
    (pin,) = get(daemon, "/cache")["pins"]
    lcpd_cache(daemon, tmp_path, "unpin", str(pin["pin"]))
    assert get(daemon, "/cache")["pins"] == []
