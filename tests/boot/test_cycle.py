"""lcpd under a real systemd: installed, started by a client, restarted, killed, stuck, stopped, removed.

The tests follow one another: each begins with what the one before it left.
"""

from __future__ import annotations

import pytest

from boot.conftest import ENVIRONMENT, Container

pytestmark = [pytest.mark.native, pytest.mark.systemd]

SETTINGS = """
[model]
ref = "demo:hybrid"
threads = 1
slots = 2
[cache]
ram = "256MiB"
"""
DROP_IN = "[Service]\nWatchdogSec=4\n" + "".join(f"Environment={key}={value}\n" for key, value in ENVIRONMENT.items())
PROMPT = "Tell me about the cache that keeps what was computed once. " * 20


def chat(turns: int = 1) -> dict[str, object]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": PROMPT if i == 0 else "go on"} for i in range(turns)]
    return {"messages": messages, "temperature": 0, "max_tokens": 24}


def cached(body: dict) -> int:
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


@pytest.fixture(scope="module")
def installed(container: Container) -> Container:
    said = container.lcpd("systemd", "install")
    assert "failed" not in said
    container.write("/etc/lcpd/lcpd.toml", SETTINGS)
    container.write("/etc/credstore/lcpd.api-keys", "secret\n")
    container.write("/etc/systemd/system/lcpd.service.d/50-test.conf", DROP_IN)
    container.run("systemctl", "daemon-reload")
    return container


def test_the_folders_belong_to_lcpd_alone(installed: Container) -> None:
    said = installed.run("stat", "--format=%n %U:%G %a", "/etc/lcpd", "/var/lib/lcpd", "/var/cache/lcpd")
    assert said.splitlines() == [
        "/etc/lcpd root:lcpd 750",
        "/var/lib/lcpd lcpd:lcpd 700",
        "/var/cache/lcpd lcpd:lcpd 700",
    ]
    assert installed.run("readlink", "/var/lib/lcpd/cache").strip() == "/var/cache/lcpd"


def test_the_first_client_starts_lcpd_and_waits_for_its_answer(installed: Container) -> None:
    installed.run("systemctl", "start", "lcpd.socket")
    assert installed.property("ActiveState") == "inactive"
    status, body = installed.ask("/v1/chat/completions", chat())
    assert (status, cached(body)) == (200, 0)
    installed.wait_for("ActiveState", "active")
    assert installed.property("StatusText") == "serving demo:hybrid"


def test_keys_come_from_the_credentials(installed: Container) -> None:
    assert installed.ask("/v1/models", key=None)[0] == 401
    assert installed.ask("/v1/models")[0] == 200


def test_a_reload_has_the_keys_read_again_and_restarts_nothing(installed: Container) -> None:
    before = installed.property("MainPID")
    installed.run("systemctl", "reload", "lcpd.service")
    assert installed.ask("/v1/models")[0] == 200
    assert "keys were read again: 1" in installed.journal()
    assert (installed.property("MainPID"), installed.property("ActiveState")) == (before, "active")


def test_the_arena_is_kept_by_systemd(installed: Container) -> None:
    assert installed.property("NFileDescriptorStore") == "1"


def test_a_restart_is_a_pause_and_what_was_computed_is_still_there(installed: Container) -> None:
    before = installed.property("MainPID")
    installed.run("systemctl", "--no-block", "restart", "lcpd.service")
    status, body = installed.ask("/v1/chat/completions", chat(3))
    assert status == 200
    assert cached(body) > 100
    assert installed.property("MainPID") != before
    installed.wait_for("ActiveState", "active")


def test_after_a_crash_it_is_started_again_with_its_cache(installed: Container) -> None:
    # The list of what is in the arena is written within some seconds.
    installed.run("sleep", "6")
    installed.run("systemctl", "kill", "--signal=SIGKILL", "--kill-whom=main", "lcpd.service")
    status, body = installed.ask("/v1/chat/completions", chat(3))
    assert status == 200
    assert cached(body) > 100
    assert installed.property("NRestarts") == "1"
    installed.wait_for("ActiveState", "active")


def test_an_idle_daemon_is_healthy(installed: Container) -> None:
    before = installed.property("MainPID")
    installed.run("sleep", "10")
    assert installed.property("MainPID") == before


def test_a_daemon_that_does_not_answer_is_ended_by_the_watchdog_and_started_again(installed: Container) -> None:
    installed.run("systemctl", "kill", "--signal=SIGSTOP", "--kill-whom=main", "lcpd.service")
    installed.wait_for("NRestarts", "2")
    assert installed.ask("/v1/chat/completions", chat())[0] == 200
    assert "Watchdog timeout" in installed.journal()
    installed.wait_for("ActiveState", "active")


def test_a_worker_that_dies_is_lcpds_own_affair(installed: Container) -> None:
    before = installed.property("MainPID")
    worker = installed.run("pgrep", "-u", "lcpd", "-f", "lcpd.engine.worker").strip()
    installed.run("kill", "-KILL", worker)
    assert installed.ask("/v1/chat/completions", chat())[0] == 200
    assert (installed.property("MainPID"), installed.property("NRestarts")) == (before, "2")


def test_stopping_it_ends_well_and_leaves_no_process(installed: Container) -> None:
    installed.run("systemctl", "stop", "lcpd.socket", "lcpd.service")
    assert installed.property("Result") == "success"
    assert installed.try_run("pgrep", "-u", "lcpd").stdout == ""
    asking = installed.begin_to_ask("/health")
    assert "ConnectError" in asking.communicate()[1]


def test_wrong_settings_are_no_reason_to_try_again(installed: Container) -> None:
    installed.write("/etc/lcpd/lcpd.toml", "[model]\nslots = 0\n")
    assert installed.try_run("systemctl", "start", "lcpd.service").returncode != 0
    assert installed.property("Result") == "exit-code"
    assert installed.property("NRestarts") == "0"
    assert "model.slots = 0" in installed.journal()


def test_a_model_that_cannot_be_loaded_is_a_failed_start(installed: Container) -> None:
    installed.write("/var/lib/lcpd/broken.gguf", "no model")
    installed.write("/etc/lcpd/lcpd.toml", '[model]\nref = "/var/lib/lcpd/broken.gguf"\n')
    installed.write("/etc/systemd/system/lcpd.service.d/60-test.conf", "[Service]\nRestart=no\n")
    installed.run("systemctl", "daemon-reload")
    assert installed.try_run("systemctl", "start", "lcpd.service").returncode != 0
    assert installed.property("Result") == "exit-code"
    installed.run("rm", "/etc/systemd/system/lcpd.service.d/60-test.conf")
    installed.run("systemctl", "stop", "lcpd.socket")


def test_uninstalling_removes_what_was_installed_and_no_more(installed: Container) -> None:
    said = installed.lcpd("systemd", "uninstall")
    assert "left" not in said
    left = installed.run("find", "/etc/systemd/system", "/etc/sysusers.d", "/etc/tmpfiles.d", "-name", "*lcpd*")
    assert left.splitlines() == ["/etc/systemd/system/lcpd.service.d"]
    assert installed.run("ls", "/etc/lcpd").split() == ["lcpd.toml"]
