"""Settings: what there is to set (``settings``), where values come from (``loader``), how they are shown."""

from lcpd.config.loader import ConfigError, Loaded, load
from lcpd.config.settings import Settings
from lcpd.config.sizes import Size, format_size, parse_size

__all__ = ["ConfigError", "Loaded", "Settings", "Size", "format_size", "load", "parse_size"]
