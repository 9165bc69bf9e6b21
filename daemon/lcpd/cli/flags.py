"""The flags that set settings, shared by the commands that load them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click

from lcpd.config.loader import FLAGS, ConfigError, Loaded, load
from lcpd.config.settings import leaves

Command = TypeVar("Command", bound=Callable[..., Any])

_METAVARS = {
    "server.host": "H",
    "server.port": "P",
    "model.ref": "REF",
    "model.kv": "TYPE",
    "model.gpu_layers": "auto|N",
    "model.flash_attn": "auto|on|off",
    "model.alias": "NAME",
    "cache.ram": "SIZE",
    "cache.dir": "DIR",
    "cache.disk": "SIZE",
    "server.api_key_file": "F",
}
"""What the value is called in the help; N for the others."""


class ConfigurationFailure(click.ClickException):
    """A mistake in the configuration, one line each."""

    exit_code = 2


def settings_flags(command: Command) -> Command:
    """Add ``--config`` and every flag of ``FLAGS`` to a command; ``load_settings`` takes their values.

    The values stay text here: the settings check them all the same way, whatever source they come from.
    """
    for name, flag in reversed(FLAGS.items()):
        field, parameter = leaves()[name], name.replace(".", "__")
        if field.annotation is bool:
            command = click.option(
                flag, parameter, is_flag=True, flag_value="true", default=None, help=field.description
            )(command)
        else:
            metavar = _METAVARS.get(name, "N")
            command = click.option(flag, parameter, metavar=metavar, help=field.description)(command)
    return click.option(
        "--config",
        "config_file",
        metavar="F",
        type=click.Path(path_type=Path),
        help="The settings file, instead of $LCPD_CONFIG or lcpd.toml in lcpd's configuration folder.",
    )(command)


def load_settings(
    config_file: Path | None, values: Mapping[str, str | None], arguments: Mapping[str, str] = MappingProxyType({})
) -> Loaded:
    """The settings for the flags' values as click passes them.  Raises ``ConfigurationFailure``.

    ``arguments``: see :func:`lcpd.config.loader.load`.
    """
    given = {name.replace("__", "."): value for name, value in values.items()}
    try:
        return load(config_file, given, os.environ, arguments)
    except ConfigError as error:
        raise ConfigurationFailure(str(error)) from None
