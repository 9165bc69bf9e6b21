"""lcpd under a user's own service manager."""

from __future__ import annotations

import pytest

from boot.conftest import ENVIRONMENT, PYTHON, Container

pytestmark = [pytest.mark.native, pytest.mark.systemd]

HOME = "/home/ann"
SETTINGS = """
[model]
threads = 1
slots = 1
[cache]
ram = "256MiB"
"""
DROP_IN = "[Service]\nWatchdogSec=4\n" + "".join(f"Environment={key}={value}\n" for key, value in ENVIRONMENT.items())
CHAT = {"messages": [{"role": "user", "content": "What is kept? " * 60}], "temperature": 0, "max_tokens": 8}


class Ann:
    """A user with a service manager of her own."""

    def __init__(self, container: Container) -> None:
        self.container = container
        container.run("useradd", "--create-home", "ann")
        self._number = container.run("id", "-u", "ann").strip()
        container.run("systemctl", "start", f"user@{self._number}.service")

    def run(self, *command: str) -> str:
        """Run a command as she would."""
        environment = [f"HOME={HOME}", f"XDG_RUNTIME_DIR=/run/user/{self._number}"]
        return self.container.run("runuser", "-u", "ann", "--", "env", *environment, *command)

    def property(self, name: str) -> str:
        """One of her lcpd.service's."""
        return self.run("systemctl", "--user", "show", "--property", name, "--value", "lcpd.service").strip()


@pytest.fixture(scope="module")
def ann(container: Container) -> Ann:
    ann = Ann(container)
    container.use_build(f"{HOME}/.cache/lcpd/builds")
    container.write(f"{HOME}/.config/lcpd/lcpd.toml", SETTINGS)
    container.write(f"{HOME}/.config/systemd/user/lcpd.service.d/50-test.conf", DROP_IN)
    container.run("chown", "-R", "ann:ann", HOME)
    assert "failed" not in ann.run(PYTHON, "-m", "lcpd", "systemd", "install", "--user")
    ann.run("systemctl", "--user", "start", "lcpd.socket")
    return ann


def cached(answer: tuple[int, dict]) -> int:
    status, body = answer
    assert status == 200
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_it_is_started_by_the_first_client_restarted_and_started_again_after_a_crash(ann: Ann) -> None:
    ask = ann.container.ask
    assert cached(ask("/v1/chat/completions", CHAT)) == 0
    ann.run("systemctl", "--user", "restart", "lcpd.service")
    assert ann.property("NFileDescriptorStore") == "1"
    assert cached(ask("/v1/chat/completions", CHAT)) > 100
    ann.run("systemctl", "--user", "kill", "--signal=SIGKILL", "--kill-whom=main", "lcpd.service")
    assert cached(ask("/v1/chat/completions", CHAT)) > 100
    assert ann.property("NRestarts") == "1"


def test_uninstalling_stops_it(ann: Ann) -> None:
    said = ann.run(PYTHON, "-m", "lcpd", "systemd", "uninstall", "--user")
    assert "left" not in said
    assert ann.property("ActiveState") == "inactive"
    left = ann.container.run("find", f"{HOME}/.config/systemd/user", "-name", "lcpd*", "-type", "f")
    assert left == ""
