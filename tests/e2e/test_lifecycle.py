"""Starting, dying and stopping: the daemon comes back, tells the truth, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.native
WORKER, CHAT = "lcpd.engine.worker", "lcpd.chat.service"


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def eventually(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
    return value


def test_after_kill_9_of_the_worker_the_next_request_succeeds(start_daemon):
    daemon = start_daemon()
    assert daemon.chat("Read the file a.py").status_code == 200
    old = daemon.child(WORKER)
    os.kill(old, signal.SIGKILL)
    assert daemon.chat("Read the file a.py").status_code == 200
    assert daemon.health()["restarts"] == 1
    assert daemon.child(WORKER) != old


def test_after_kill_9_of_the_chat_process_the_next_request_succeeds(start_daemon):
    daemon = start_daemon()
    old = daemon.child(CHAT)
    os.kill(old, signal.SIGKILL)
    assert daemon.chat("Read the file a.py").status_code == 200
    assert daemon.child(CHAT) != old


def test_a_request_that_was_waiting_when_the_worker_died_is_run_unnoticed(start_daemon):
    daemon = start_daemon("--slots", "1")
    worker = daemon.child(WORKER)
    os.kill(worker, signal.SIGSTOP)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(daemon.chat("Read the file a.py")))
    thread.start()
    eventually(lambda: daemon.health()["slots"]["busy"] == 1)
    os.kill(worker, signal.SIGKILL)
    thread.join(60)
    assert replies[0].status_code == 200


def test_kill_9_of_the_daemon_leaves_no_process_behind(start_daemon):
    daemon = start_daemon()
    children = daemon.children()
    assert len(children) == 2
    daemon.stop(signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in children))


def test_a_crash_loop_ends_in_a_clear_health_error(start_daemon):
    daemon = start_daemon(LCPD_ENGINE__CRASH_LIMIT="3", LCPD_ENGINE__RESTART_BACKOFF="0.1")
    for _ in range(3):
        os.kill(eventually(lambda: daemon.children() and _worker_or_none(daemon)), signal.SIGSEGV)
        eventually(lambda: daemon.health()["status"] in ("ok", "failed"))
    health = daemon.wait_for("failed")
    assert "crash loop: 3 crashes" in health["reason"]
    assert "killed by SIGSEGV" in health["reason"]
    assert httpx.get(f"{daemon.url}/health").status_code == 503
    refused = daemon.chat("hello")
    assert refused.status_code == 503
    assert "crash loop" in refused.json()["error"]["message"]


def _worker_or_none(daemon):
    try:
        return daemon.child(WORKER)
    except (AssertionError, FileNotFoundError):
        return None


def test_a_model_file_that_cannot_be_loaded_is_named_by_health(start_daemon, tmp_path):
    from lcpd.paths import demo_model

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(demo_model().read_bytes().replace(b"qwen35", b"qwen99"))  # an architecture that is none
    daemon = start_daemon("--model", str(broken), wait="failed")
    assert "broken.gguf" in daemon.health()["reason"]


def test_a_hung_worker_is_killed_and_replaced(start_daemon):
    daemon = start_daemon(LCPD_ENGINE__HEARTBEAT_TIMEOUT="3")
    old = daemon.child(WORKER)
    os.kill(old, signal.SIGSTOP)
    eventually(lambda: not alive(old))
    assert daemon.chat("Read the file a.py").status_code == 200
    assert "hang" in httpx.get(f"{daemon.url}/metrics").text


def test_sigterm_lets_a_running_stream_finish(start_daemon):
    daemon = start_daemon()
    body = {"messages": [{"role": "user", "content": "Read a"}], "stream": True, "ignore_eos": True, "max_tokens": 900}
    with httpx.stream("POST", f"{daemon.url}/v1/chat/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        daemon.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-2:] == ["data: [DONE]", ""]
    assert daemon.process.wait(timeout=60) == 0


def test_a_stream_that_outlasts_the_drain_timeout_does_not_hold_the_daemon(start_daemon):
    daemon = start_daemon(LCPD_SERVER__DRAIN_TIMEOUT="0.5")
    body = {"messages": [{"role": "user", "content": "Read a"}], "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{daemon.url}/v1/chat/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        children = daemon.children()
        assert daemon.stop() == 0
    assert not any(alive(pid) for pid in children)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_daemon_stops_cleanly(start_daemon, number):
    daemon = start_daemon()
    children = daemon.children()
    assert daemon.stop(number) == 0
    assert not any(alive(pid) for pid in children)
    assert "Traceback" not in daemon.log


def test_a_client_that_goes_away_stops_its_request(start_daemon):
    daemon = start_daemon("--slots", "1")
    body = {"messages": [{"role": "user", "content": "Read a"}], "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{daemon.url}/v1/chat/completions", json=body, timeout=60) as stream:
        lines = stream.iter_lines()
        next(lines)
        assert daemon.health()["slots"]["busy"] == 1
    eventually(lambda: daemon.health()["slots"]["busy"] == 0)


def test_health_says_how_many_layers_are_on_which_device(start_daemon):
    health = start_daemon("--gpu-layers", "0").health()
    assert sum(health["engine"]["layers"].values()) >= 8
    assert health["engine"]["threads"] == 1


def test_without_a_build_serve_says_what_to_run(tmp_path):
    import subprocess
    import sys

    result = subprocess.run(
        [sys.executable, "-m", "lcpd", "serve"],
        env={**os.environ, "LCPD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 1
    assert "lcpd build" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_daemon_process_loads_no_native_llama_code(start_daemon):
    daemon = start_daemon()
    assert daemon.chat("Read the file a.py").status_code == 200
    maps = {pid: Path(f"/proc/{pid}/maps").read_text() for pid in (daemon.process.pid, daemon.child(WORKER))}
    native = ("libllama", "libggml", "liblcpd_bridge")
    assert not any(name in maps[daemon.process.pid] for name in native)
    assert all(name in maps[daemon.child(WORKER)] for name in native)


@pytest.mark.parametrize(
    ("flag", "content", "words"),
    [
        ("--api-key-file", b"# none\n\n", "server.api_key_file"),
        ("--api-key-file", b"\xff\xfe", "server.api_key_file"),
    ],
)
def test_a_key_file_without_a_key_stops_the_start_instead_of_opening_the_door(tmp_path, flag, content, words):
    import subprocess
    import sys

    file = tmp_path / "keys"
    file.write_bytes(content)
    command = [sys.executable, "-m", "lcpd", "serve", flag, str(file), "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_template_that_cannot_be_used_is_named_by_health(start_daemon, tmp_path):
    template = tmp_path / "broken.jinja"
    template.write_text("{% for m in messages %}{{ m.content }")
    daemon = start_daemon(LCPD_MODEL__CHAT_TEMPLATE_FILE=str(template), wait="failed")
    assert "model.chat_template_file" in daemon.health()["reason"]
    assert httpx.get(f"{daemon.url}/health").status_code == 503
