"""The one exception of the build."""

from __future__ import annotations


class BuildError(Exception):
    """A build step failed.  The text names what failed and the remedy; it is meant for the user as it is."""
