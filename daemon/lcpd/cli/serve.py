"""``lcpd serve``: run the daemon."""

from __future__ import annotations

from pathlib import Path

import click

from lcpd.build import BuildMissing
from lcpd.cli.flags import ConfigurationFailure, load_settings, settings_flags
from lcpd.config import ConfigError
from lcpd.models import BadReference, ModelMissing


@click.command()
@settings_flags
def serve(config_file: Path | None, **values: str | None) -> int:
    """Run the daemon until Ctrl-C or SIGTERM.

    Flags beat the environment (LCPD_SECTION__KEY), which beats the settings file.
    """
    settings = load_settings(config_file, values).settings
    # Imported after the settings are known to be right, so that a mistake in them is shown at once.
    from lcpd.app import run

    try:
        return run(settings)
    except BadReference as error:
        raise ConfigurationFailure(f"model.ref: {error}") from None
    except ConfigError as error:
        raise ConfigurationFailure(str(error)) from None
    except (ModelMissing, BuildMissing) as error:
        raise click.ClickException(str(error)) from None
