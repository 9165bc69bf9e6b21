"""lcpd: a daemon that keeps the prefixes a local model has already computed."""

__version__ = "0.1.0"
