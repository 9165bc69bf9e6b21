"""``lcpd demo``: a conversation with tools over HTTP, and what of each prompt was computed and what was reused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click
import httpx
from rich.console import Console
from rich.table import Table

_START_TIMEOUT = 120
"""Seconds."""
_TURNS = (
    "Read the file src/cache.py",
    "List the files in lib/",
    "Read the file README.md",
    "Search for TODO in src/",
)
_SYSTEM = "You are a coding agent. Use the tools to look at the project, then answer in one sentence."
_FILES = {
    "src/cache.py": "def get(key):\n    return store[key]  # TODO: expire\n",
    "README.md": "# demo\nA tiny project to look at.\n",
}


@dataclass(frozen=True)
class Row:
    """One request of the conversation.  Times in seconds."""

    turn: int
    step: str
    prompt: int
    cached: int
    first_token: float
    rate: float


@click.command()
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("demo:hybrid", "demo:smollm2"),
    show_default=True,
    help="Models to use.",
)
def demo(models: tuple[str, ...]) -> None:
    """Start the daemon on real models and hold a four-turn conversation with tools with each."""
    console = Console()
    for model in models:
        console.rule(f"[bold]{model}")
        with _daemon(model, console) as url:
            rows = _converse(url, console)
        console.print(_table(model, rows))


@contextmanager
def _daemon(model: str, console: Console) -> Iterator[str]:
    """A daemon on a free port, stopped with SIGTERM at the end."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "lcpd", "serve", "--model", model, "--port", str(port), "--slots", "2"]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ))
        try:
            _wait_until_ready(url, process, log, console)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Any, console: Console) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    with console.status("starting the daemon") as status:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                log.seek(0)
                raise click.ClickException(f"the daemon did not start:\n{log.read()[-2000:]}")
            try:
                health = httpx.get(f"{url}/health", timeout=5).json()
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if health["status"] == "ok":
                engine = health["engine"]
                layers = ", ".join(f"{count} layers on {device}" for device, count in engine["layers"].items())
                console.print(f"{engine['description']}: {layers}, context {engine['n_ctx']} tokens")
                return
            if health["status"] == "failed":
                raise click.ClickException(f"the daemon could not load the model: {health['reason']}")
            status.update(f"{health['status']} {health.get('progress', 0):.0%}")
            time.sleep(0.05)
    raise click.ClickException(f"the daemon was not ready after {_START_TIMEOUT} s")


def _converse(url: str, console: Console) -> list[Row]:
    """The conversation, printed as it goes; every tool call is answered until the model replies with text."""
    try:
        import openai
    except ModuleNotFoundError as error:
        raise click.ClickException("the demo talks through the openai package: pip install 'lcpd[demo]'") from error
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=600, max_retries=0)
    model = client.models.list().data[0].id
    messages: list[dict[str, Any]] = [{"role": "system", "content": _SYSTEM}]
    rows = []
    for turn, text in enumerate(_TURNS, 1):
        messages.append({"role": "user", "content": text})
        console.print(f"[bold cyan]user[/]       {text}")
        for step in ("asks", "answers"):
            message, row = _request(client, model, messages, turn, step)
            rows.append(row)
            messages.append(message)
            for call in message.get("tool_calls", []):
                function = call["function"]
                console.print(f"[bold green]tool call[/]  {function['name']}({function['arguments']})", highlight=False)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": _use_tool(function)})
            if message.get("content"):
                console.print(f"[bold green]assistant[/]  {message['content'].strip()}", highlight=False)
            if not message.get("tool_calls"):
                break
    return rows


def _request(
    client: Any, model: str, messages: list[dict[str, Any]], turn: int, step: str
) -> tuple[dict[str, Any], Row]:
    from lcpd.chat.replies import add_delta

    begun = time.monotonic()
    first = 0.0
    message: dict[str, Any] = {"role": "assistant", "content": None}
    usage: Any = None
    rate = 0.0
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        tools=_tools(),
        temperature=0,
        max_tokens=96,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        usage = chunk.usage or usage
        rate = (chunk.model_extra or {}).get("timings", {}).get("predicted_per_second", rate)
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True)
            if not first and delta.keys() - {"role"}:
                first = time.monotonic() - begun
            add_delta(message, delta)
    cached = usage.prompt_tokens_details.cached_tokens
    return message, Row(turn, step, usage.prompt_tokens, cached, first, rate)


def _use_tool(function: dict[str, str]) -> str:
    """Pretend to run a tool on the demo's two files."""
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except ValueError:
        return "error: the arguments are not JSON"
    if function["name"] == "read_file":
        return _FILES.get(str(arguments.get("path")), "error: no such file")
    if function["name"] == "list_files":
        return "cache.py\nindex.py"
    return "src/cache.py:2: TODO: expire"


def _tools() -> list[dict[str, Any]]:
    def tool(name: str, description: str, *parameters: str) -> dict[str, Any]:
        properties = {parameter: {"type": "string"} for parameter in parameters}
        schema = {"type": "object", "properties": properties, "required": list(parameters)}
        return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}

    return [
        tool("read_file", "Read a file", "path"),
        tool("list_files", "List the files in a folder", "path"),
        tool("search", "Search for a text in files", "pattern", "path"),
    ]


def _table(model: str, rows: list[Row]) -> Table:
    table = Table(title=f"{model}: what was computed and what was reused")
    for heading in ("turn", "request", "prompt tokens", "cached", "computed", "TTFT ms", "tokens/s"):
        table.add_column(heading, justify="left" if heading == "request" else "right")
    for row in rows:
        computed = row.prompt - row.cached
        numbers = (row.prompt, row.cached, computed, round(row.first_token * 1e3), round(row.rate))
        table.add_row(str(row.turn), row.step, *map(str, numbers))
    return table


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
