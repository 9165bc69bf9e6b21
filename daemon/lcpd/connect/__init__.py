"""Pointing coding agents at the daemon: their configuration files, changed and changed back, and compared."""
