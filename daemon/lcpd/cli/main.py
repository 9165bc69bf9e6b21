"""The ``lcpd`` command: its sub-commands, loaded when used, and how errors are shown."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from io import TextIOWrapper

import click

from lcpd import __version__

COMMANDS = {
    "build": ("lcpd.cli.build", "build", "Compile llama.cpp and the bridge."),
    "cache": ("lcpd.cli.cache", "cache", "Show what the prompt cache holds, and why not more."),
    "config": ("lcpd.cli.config", "config", "Show the settings and where they come from."),
    "connect": ("lcpd.cli.connect", "connect", "Configure a client for a running daemon."),
    "demo": ("lcpd.cli.demo", "demo", "Hold a conversation with real models and show what was reused."),
    "doctor": ("lcpd.cli.connect", "doctor", "Check that a client is configured for a running daemon."),
    "inspect": ("lcpd.cli.inspect", "inspect", "Show what a model is, from its file."),
    "key": ("lcpd.cli.key", "key", "Make API keys."),
    "plan": ("lcpd.cli.plan", "plan", "Show what memory a model takes, before it is loaded."),
    "pull": ("lcpd.cli.pull", "pull", "Download a model."),
    "serve": ("lcpd.cli.serve", "serve", "Run the daemon."),
    "sleep": ("lcpd.cli.sleep", "sleep", "Free the engine's memory, and keep the prompt cache."),
    "slots": ("lcpd.cli.slots", "slots", "Show what the slots of a running daemon hold and do."),
    "systemd": ("lcpd.cli.systemd", "systemd", "Install lcpd as a service of systemd."),
}
"""Name to (module, attribute, summary).  The summaries are here so that ``lcpd --help`` imports no module."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lcpd", message="%(prog)s %(version)s")
def cli() -> None:
    """Compile, supervise and serve llama.cpp, and keep the prefixes it has already computed."""


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code: 0, 1 for a failure, 2 for wrong flags or configuration.

    A command returns its exit code (or nothing: 0) and raises ``click.ClickException`` for a failure with a
    message, of which each line is printed to stderr after ``lcpd: ``.
    """
    try:
        code = cli.main(list(arguments), prog_name="lcpd", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        _complain(error.format_message())
        if error.ctx is not None:
            _complain(f"see {error.ctx.command_path} --help")
        return 2
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except click.Abort:
        _complain("interrupted")
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`lcpd config show | head`): the interpreter must not flush to it.
        sys.stdout = None
        return 1
    except OSError as error:
        _complain(str(error))
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without bars and boxes gets question marks
    sys.exit(run(sys.argv[1:]))


def _complain(message: str) -> None:
    for line in message.splitlines():
        click.echo(f"lcpd: {line}", err=True)
