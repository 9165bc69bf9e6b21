"""``lcpd connect`` and ``lcpd doctor``: configure a client for the daemon, and find out what is wrong with that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import httpx

from lcpd.cli.remote import Daemon, daemon_flags
from lcpd.config.loader import CLIENT_KEY
from lcpd.connect.clients import CLIENTS, Client
from lcpd.connect.drift import configured, drift
from lcpd.connect.edits import MISSING, EditError, Facts, FilePlan, Plan
from lcpd.connect.files import ConnectError, Records, read
from lcpd.connect.journal import applied
from lcpd.paths import dirs

Json = dict[str, Any]
_TIMEOUT = 20.0
"""Seconds."""
_MASK = "(the API key)"
_client = click.argument("client", type=click.Choice(sorted(CLIENTS)), metavar="CLIENT")
_EPILOG = f"Clients: {', '.join(sorted(CLIENTS))}."


@click.command(epilog=_EPILOG)
@_client
@click.option("--print", "mode", flag_value="print", default=True, help="Show what would be set.  The default.")
@click.option("--apply", "mode", flag_value="apply", help="Set it; all else in the client's files stays as it is.")
@click.option("--undo", "mode", flag_value="undo", help="Change the client's files back.")
@daemon_flags
def connect(client: str, mode: str, url: str | None, key_file: Path | None) -> None:
    """Configure a client for a running daemon, with the limits that the daemon has.

    Nothing is written without --apply, and --undo restores what was there.
    """
    chosen, records = CLIENTS[client], Records(dirs().config / "connect", client)
    try:
        if mode == "undo":
            _report_undone(records, client)
            return
        facts = ask(url, key_file)
        if mode == "print":
            _show(_plan(chosen, replace(facts, key=_MASK if facts.key else None)), client)
        else:
            _apply(records, _plan(chosen, facts), client)
    except ConnectError as error:
        raise click.ClickException(str(error)) from error


@click.command(epilog=_EPILOG)
@_client
@daemon_flags
def doctor(client: str, url: str | None, key_file: Path | None) -> int:
    """Check that a client is configured for a running daemon: reachability, key, limits.

    Exits with 1 where something is wrong.
    """
    facts = ask(url, key_file)
    click.echo(f"ok: {facts.url} runs {facts.model} with a context of {facts.context} tokens")
    problems = list(diagnose(_plan(CLIENTS[client], facts), facts.model))
    for problem in problems:
        click.echo(f"wrong: {problem}")
    if problems:
        click.echo(f"to put it right: lcpd connect {client} --apply")
        return 1
    click.echo(f"ok: {CLIENTS[client].title} is configured for it")
    return 0


def ask(url: str | None, key_file: Path | None) -> Facts:
    """What the daemon says of itself.  Raises click.ClickException."""
    # Not the admin's key, which other commands prefer: clients keep what they are given in files.
    daemon = Daemon(url, key_file, admin=False)
    (entry,) = daemon.get("/v1/models", "data")["data"]
    if "limits" not in entry:
        raise click.ClickException("the model is being loaded, so its limits are not known yet: try again soon")
    word = daemon.known.word if daemon.known else ""
    return Facts(daemon.address, entry["id"], **entry["limits"], key=daemon.key, key_word=word)


def _plan(client: Client, facts: Facts) -> Plan:
    return client.plan(facts, Path.home(), os.environ)


# ---- connect ---------------------------------------------------------------------------------------------


def _show(plan: Plan, client: str) -> None:
    for one in plan.files:
        click.echo(f"# {one.file}{', which exists: --apply adds this to it' if one.file.exists() else ''}")
        click.echo(applied(None, None, one).after.decode())
    if plan.instead:
        click.echo("# or, instead of the file, in the environment")
        for name, value in plan.instead:
            click.echo(f"export {name}={value}")
        click.echo()
    _tell(plan)
    click.echo(f"# to do so: lcpd connect {client} --apply")


def _apply(records: Records, plan: Plan, client: str) -> None:
    for outcome in records.apply(plan.files):
        click.echo(f"{outcome.what}: {outcome.file}")
    _tell(plan)
    click.echo(f"# what was there before is kept in {records.file}; to change back: lcpd connect {client} --undo")


def _tell(plan: Plan) -> None:
    if plan.exports:
        click.echo("# needed in the client's environment, too")
        for name, word in plan.exports:
            click.echo(f"export {name}={word}")
        click.echo()
    for note in plan.notes:
        click.echo(f"# note: {note}")


def _report_undone(records: Records, client: str) -> None:
    for outcome in records.undo():
        click.echo(f"{outcome.what}: {outcome.file}")
        for place in outcome.left:
            click.echo(f"  {place} was changed since lcpd connect {client} --apply, and is left as it is")


# ---- doctor ----------------------------------------------------------------------------------------------


def diagnose(plan: Plan, model: str) -> Iterator[str]:
    """Everything that is wrong, one sentence each."""
    for one in plan.files:
        yield from _file_problems(one, model)
    for name, word in plan.exports:
        if not os.environ.get(name):
            yield f"{name} is not set in this environment: export {name}={word}"
    for name, value in plan.instead:
        if (set_to := os.environ.get(name)) and set_to != value and name.endswith("_URL"):
            yield f"{name} is {set_to} in this environment; unset it, or set it to {value}"


def _file_problems(plan: FilePlan, model: str) -> Iterator[str]:
    try:
        data = read(plan.file)
        if data is None:
            yield f"{plan.file} does not exist"
            return
        text = data.decode()
        for found in drift(plan, text):
            yield f"{plan.file}: {found.place} {found.what}"
        url = configured(plan, text, "url")
        if url is not MISSING and (problem := unreachable(str(url), _key(configured(plan, text, "key")), model)):
            yield f"{plan.file}: {problem}"
    except (ConnectError, EditError, UnicodeDecodeError) as error:
        yield f"{plan.file}: {error}"


def _key(value: Any) -> str | None:
    """The key that a client sends for what its file says."""
    if value is MISSING:
        return os.environ.get(CLIENT_KEY) or os.environ.get("OPENAI_API_KEY")
    if value in (CLIENT_KEY, f"{{env:{CLIENT_KEY}}}"):
        return os.environ.get(CLIENT_KEY)
    return str(value)


def unreachable(base: str, key: str | None, model: str) -> str | None:
    """Why a client with this base URL and key does not get at the model; None if it does."""
    url = f"{base.rstrip('/')}{'' if base.rstrip('/').endswith('/v1') else '/v1'}/models"
    try:
        answer = httpx.get(url, headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=_TIMEOUT)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return f"nobody answers at {base} ({error})"
    if answer.status_code == 401:
        return f"{base} does not take the client's API key"
    try:
        names = [entry["id"] for entry in answer.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return f"what answers at {base} is no such server: status {answer.status_code}"
    return None if model in names else f"{base} does not run {model}, but {', '.join(map(str, names))}"
