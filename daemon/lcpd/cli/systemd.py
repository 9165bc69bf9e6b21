"""``lcpd systemd``: install and remove the unit files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click

from lcpd import units
from lcpd.paths import systemd_files

_ROOT = Path("/")


@click.group()
def systemd() -> None:
    """Install lcpd as a service of systemd."""


def _user_flag(command: click.decorators.FC) -> click.decorators.FC:
    return click.option("--user", is_flag=True, help="For your own service manager instead of the system's.")(command)


def _root_flag(command: click.decorators.FC) -> click.decorators.FC:
    kind = click.Path(path_type=Path, file_okay=False, resolve_path=True)
    text = "Write below this folder, and run nothing: for packages and images."
    return click.option("--root", type=kind, default=_ROOT, metavar="DIR", help=text)(command)


@systemd.command()
@_user_flag
@click.option("--instance", metavar="NAME", help="Also prepare lcpd@NAME, with settings of its own.")
@click.option(
    "--listen", metavar="ADDRESS", help=f"HOST:PORT, PORT or a path to listen on; {units.LISTEN} for lcpd itself."
)
@click.option("--print", "only_print", is_flag=True, help="Print the files instead of writing them.")
@_root_flag
def install(user: bool, instance: str | None, listen: str | None, only_print: bool, root: Path) -> None:
    """Write the unit files for the lcpd that runs this command, and say what to do next.

    A file that was changed is kept under another name, which is said.
    """
    for flag, problem in (
        ("--instance", instance is not None and units.check_instance(instance)),
        ("--listen", listen is not None and units.check_listen(listen)),
    ):
        if problem:
            raise click.UsageError(f"{flag}: {problem}")
    if instance is not None and listen is None:
        raise click.UsageError("--instance needs --listen, such as 127.0.0.1:8081: an address of its own")
    home = _config_home()
    own = None if instance is not None else listen
    address = own or units.present_listen(user, home, root) or units.LISTEN
    files = units.files(units.Machine(user, _program(), _version()), systemd_files(), home, address)
    if instance is not None and listen is not None:
        files.append(units.drop_in(user, home, instance, listen))
    if only_print:
        for file in files:
            click.echo(f"# ---- {file.path}\n{file.text}")
        return
    if not user and root == _ROOT and (hidden := units.out_of_sight(_places())):
        raise click.ClickException(
            f"a system service cannot reach {', '.join(map(str, hidden))}: install lcpd elsewhere, in /opt/lcpd for"
            " example, and call that one; or take --user"
        )
    for file in files:
        path = units.below(root, file.path)
        kept = units.put(path, file.text)
        click.echo(f"wrote {path}" + (f"; what was there is now {kept}" if kept else ""))
    if root == _ROOT:
        if not user:
            _run("systemd-sysusers", "/etc/sysusers.d/lcpd.conf")
            _run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/lcpd.conf")
        _run(*_systemctl(user), "daemon-reload")
    click.echo(_next_steps(user, instance))


@systemd.command()
@_user_flag
@click.option("--instance", metavar="NAME", help="Remove only lcpd@NAME.")
@_root_flag
def uninstall(user: bool, instance: str | None, root: Path) -> None:
    """Stop lcpd and remove the files that `lcpd systemd install` wrote, unless they were changed since.

    Settings, models, builds and the prompt cache stay.
    """
    if instance is not None and (problem := units.check_instance(instance)):
        raise click.UsageError(f"--instance: {problem}")
    home = _config_home()
    drop_ins = units.drop_ins(user, home, root)
    if instance is not None:
        drop_ins = [path for path in drop_ins if path.parent.name == f"lcpd@{instance}.socket.d"]
        if not drop_ins:
            raise click.ClickException(f"lcpd@{instance} is not installed")
    names = [path.parent.name.removesuffix(".socket.d") for path in drop_ins]
    names += ["lcpd"] if instance is None else []
    if root == _ROOT:
        _run(*_systemctl(user), "disable", "--now", *(f"{n}.{kind}" for n in names for kind in ("socket", "service")))
    paths = drop_ins + ([units.below(root, path) for path in units.paths(user, home)] if instance is None else [])
    for path in paths:
        match units.take_away(path):
            case True:
                click.echo(f"removed {path}")
            case False:
                click.echo(f"left {path}: it was changed")
    for path in drop_ins:
        if path.parent.is_dir() and not any(path.parent.iterdir()):
            path.parent.rmdir()
    if root == _ROOT:
        _run(*_systemctl(user), "daemon-reload")


def _program() -> tuple[str, ...]:
    """The command that starts this lcpd: its console script, or else its interpreter."""
    script = Path(sys.executable).with_name("lcpd")
    return (str(script),) if script.is_file() else (sys.executable, "-m", "lcpd")


def _places() -> list[Path]:
    """Where the files are that this lcpd consists of."""
    package = Path(units.__file__).parent
    return sorted({Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve(), package})


def _config_home() -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME", "")
    return Path(configured) if configured.startswith("/") else Path.home() / ".config"


def _version() -> int | None:
    """Of the systemd on this machine; None where there is none."""
    if shutil.which("systemctl") is None:
        return None
    said = subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"systemd (\d+)", said)
    return int(found[1]) if found else None


def _systemctl(user: bool) -> tuple[str, ...]:
    return ("systemctl", "--user") if user else ("systemctl",)


def _run(*command: str) -> None:
    """Run a command of systemd's, where it manages this machine; what goes wrong is said and no reason to stop."""
    line = " ".join(command)
    if not Path("/run/systemd/system").is_dir():
        click.echo(f"systemd does not run here; not done: {line}")
        return
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        click.echo(f"not done: {line}: {error}", err=True)
        return
    if done.returncode:
        click.echo(f"failed: {line}: {done.stderr.strip()}", err=True)


def _next_steps(user: bool, instance: str | None) -> str:
    name = "lcpd" if instance is None else f"lcpd@{instance}"
    file = f"{instance or 'lcpd'}.toml"
    lcpd = " ".join(_program())
    if user:
        where, become, note = "~/.config/lcpd", "", "loginctl enable-linger   # to run without being logged in"
    else:
        where, become, note = "/etc/lcpd", "sudo -u lcpd env LCPD_HOME=/var/lib/lcpd ", ""
    steps = [
        f"{where}/{file}   # settings: `lcpd config example` shows all",
        f"{become}{lcpd} build   # once, and {become}{lcpd} pull REF for a model of the hub",
        f"{' '.join(_systemctl(user))} enable --now {name}.socket {name}.service",
        note,
    ]
    return "\n".join(["next:", *(f"  {step}" for step in steps if step)])
