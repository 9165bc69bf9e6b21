"""The prompt cache outlives the daemon on disk, without a service manager."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.conftest import READY_WITHIN, Daemon
from support import MODELS, text_of

pytestmark = pytest.mark.native

FLAGS = ("--ctx", "4096", "--slots", "1", "--flash-attn", "off")
ADMIN = {"Authorization": "Bearer admin"}


@pytest.fixture
def start(start_daemon, tmp_path: Path):
    """Starts daemons that share one folder."""

    def begin(*flags: str, **environment: str) -> Daemon:
        given = {
            "LCPD_CACHE__DISK": "1GiB",
            "LCPD_CACHE__DISK_FLOOR": "0",
            "LCPD_CACHE__DIR": str(tmp_path / "prompts"),
            "LCPD_CACHE__PREWARM": "0",
        }
        daemon = start_daemon(*FLAGS, *flags, **{**given, **environment})
        wait_for_disk(daemon)
        return daemon

    return begin


def wait_for_disk(daemon: Daemon, status: str = "ok") -> None:
    deadline = time.monotonic() + READY_WITHIN
    while daemon.health()["disk"]["status"] != status:
        assert time.monotonic() < deadline, daemon.log
        time.sleep(0.05)


def metric(daemon: Daemon, name: str, **labels: str) -> int:
    families = text_string_to_metric_families(httpx.get(f"{daemon.url}/metrics").text)
    return sum(
        int(sample.value)
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def wait_until_written(daemon: Daemon) -> None:
    """All of the last conversation is on disk: idle for a while, nothing waits."""
    deadline = time.monotonic() + READY_WITHIN
    while metric(daemon, "lcpd_cache_disk_queue") or not metric(daemon, "lcpd_cache_disk_files"):
        assert time.monotonic() < deadline, daemon.log
        time.sleep(0.2)


def copied(folder: Path, to: Path) -> Path:
    """A copy of a store; reading it is not to look as if its files had been used."""
    times = {path: path.stat() for path in folder.rglob("*")}
    shutil.copytree(folder, to)
    for path, status in times.items():
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return to


def complete(daemon: Daemon, prompt: list[int], length: int) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": length, "temperature": 0}
    return httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=120)


def said(response: httpx.Response) -> str:
    message = response.json()["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


def report(response: httpx.Response) -> dict:
    return response.json()["timings"]["cache"]


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
@pytest.mark.parametrize("end", ["planned", "killed"])
def test_after_a_restart_a_conversation_comes_back_from_disk_and_says_the_same(kind, end, start, start_daemon):
    prompt = text_of(2000)
    first = start("--model", MODELS[kind])
    before = first.chat(prompt)
    if end == "planned":
        assert first.stop() == 0, first.log
    else:
        wait_until_written(first)
        first.stop(signal.SIGKILL)
    second = start("--model", MODELS[kind])
    again = second.chat(prompt)
    cache = report(again)
    assert cache["disk"] > 0
    assert cache["computed"] < 0.02 * (cache["hit"] + cache["computed"]), (cache, second.log)
    assert metric(second, "lcpd_prompt_tokens_total", source="disk") == cache["disk"]
    assert said(again) == said(before)


@pytest.mark.parametrize("kind", ["attention", "swa", "hybrid"])
def test_after_a_restart_a_slot_holds_the_last_conversation_before_anybody_asks(kind, start, tmp_path):
    prompt = [300 + number * number % 1699 for number in range(2000)]
    following = [*prompt, *range(400, 420)]
    first = start("--model", MODELS[kind], "--slots", "2")
    first.chat("An older conversation")
    complete(first, prompt, 1)
    assert first.stop() == 0, first.log
    copy = copied(tmp_path / "prompts", tmp_path / "copy")
    usual = start("--model", MODELS[kind], "--slots", "2", LCPD_CACHE__DIR=str(copy))
    expected = complete(usual, following, 16)
    assert report(expected)["disk"] == len(prompt)
    second = start("--model", MODELS[kind], "--slots", "2", LCPD_CACHE__PREWARM="1")
    deadline = time.monotonic() + READY_WITHIN
    while not metric(second, "lcpd_prewarmed_tokens_total"):
        assert time.monotonic() < deadline, second.log
        time.sleep(0.05)
    held = [slot["n_tokens"] for slot in httpx.get(f"{second.url}/slots").json()["slots"]]
    assert sorted(held) == [0, len(prompt)]
    assert "restored the 2000 tokens of an earlier conversation" in second.log
    again = complete(second, following, 16)
    cache = report(again)
    assert (cache["vram"], cache["computed"]) == (len(prompt), len(following) - len(prompt)), cache
    assert metric(second, "lcpd_prompt_tokens_total", source="computed") == cache["computed"]
    assert again.json()["choices"][0]["text"] == expected.json()["choices"][0]["text"]


def test_files_that_changed_meanwhile_are_computed_again(start, tmp_path):
    first = start()
    before = first.chat(text_of(1000))
    assert first.stop() == 0
    blobs = list((tmp_path / "prompts").glob("??/*.blob"))
    assert blobs
    for blob in blobs:
        data = bytearray(blob.read_bytes())
        data[-len(data) // 3] ^= 4
        blob.write_bytes(data)
    second = start()
    again = second.chat(text_of(1000))
    assert (again.status_code, report(again)["disk"]) == (200, 0)
    assert said(again) == said(before)
    assert metric(second, "lcpd_cache_disk_removed_total", reason="damaged") > 0


def test_another_kv_type_begins_cold_and_says_why(start):
    first = start("--kv", "f16")
    first.chat(text_of(500))
    assert first.stop() == 0
    second = start("--kv", "bf16")
    again = second.chat(text_of(500))
    assert report(again)["hit"] == 0
    assert {part["reason"] for part in report(again)["why"]} >= {"fingerprint changed"}
    assert metric(second, "lcpd_cache_disk_removed_total", reason="stale") > 0


def test_a_folder_that_cannot_be_written_degrades_to_ram(start_daemon, tmp_path):
    (tmp_path / "file").write_text("in the way")
    daemon = start_daemon(*FLAGS, LCPD_CACHE__DISK="1GiB", LCPD_CACHE__DIR=str(tmp_path / "file" / "prompts"))
    wait_for_disk(daemon, "degraded")
    assert "cache.dir" in daemon.health()["disk"]["reason"]
    assert metric(daemon, "lcpd_cache_disk_degraded") == 1
    assert daemon.chat("Hello").status_code == 200
    assert report(daemon.chat("Hello", "Hi.", "Go on"))["vram"] > 0


def test_a_purge_leaves_no_trace_of_a_prompt(start, tmp_path):
    keys = tmp_path / "admin"
    keys.write_text("admin\n")
    daemon = start(LCPD_SERVER__ADMIN_KEY_FILE=str(keys))
    daemon.chat(text_of(600))
    daemon.chat(text_of(600, seed=1))
    wait_until_written(daemon)
    assert httpx.post(f"{daemon.url}/cache/purge").status_code == 403
    purged = httpx.post(f"{daemon.url}/cache/purge", headers=ADMIN, timeout=60).json()["purged"]
    assert purged["disk"]["files"] > 0
    assert not list((tmp_path / "prompts").glob("??/*.blob"))
    assert report(daemon.chat(text_of(600)))["hit"] == 0


def test_what_is_not_to_be_stored_is_not(start, tmp_path):
    daemon = start()
    body = {"messages": [{"role": "user", "content": text_of(600)}], "max_tokens": 8, "temperature": 0}
    headers = {"x-lcpd-cache": "no-store"}
    answer = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert answer.status_code == 200
    time.sleep(6)  # what an idle slot holds is saved after five seconds
    daemon.chat("Something else, which takes the slot")
    assert metric(daemon, "lcpd_cache_bytes", tier="ram", kind="segment") == 0
    assert report(daemon.chat(text_of(600)))["hit"] == 0
    assert daemon.stop() == 0
    second = start()
    assert report(second.chat("Something else, which takes the slot"))["disk"] > 0


def test_keys_share_nothing_where_they_are_kept_apart(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    environment = {"LCPD_SERVER__API_KEY_FILE": str(keys), "LCPD_CACHE__ISOLATE": "key"}

    def ask(daemon: Daemon, key: str) -> dict:
        body = {"messages": [{"role": "user", "content": text_of(600)}], "max_tokens": 8, "temperature": 0}
        headers = {"Authorization": f"Bearer {key}"}
        return report(httpx.post(f"{daemon.url}/v1/chat/completions", json=body, headers=headers, timeout=120))

    first = start("--slots", "2", **environment)
    assert ask(first, "one")["hit"] == 0
    assert ask(first, "two")["hit"] == 0
    assert ask(first, "one")["hit"] > 500
    assert first.stop() == 0
    second = start("--slots", "2", **environment)
    assert ask(second, "two")["disk"] > 500
    assert second.stop() == 0
    keys.write_text("one\nthree\n")
    third = start("--slots", "2", **environment)
    assert ask(third, "three")["hit"] == 0
