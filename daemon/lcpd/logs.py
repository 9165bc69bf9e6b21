"""Logging: lines for people or JSON objects for log collectors, on stderr."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import msgspec
from aiohttp.http_exceptions import HttpProcessingError


def set_up(level: str, style: Literal["text", "json"]) -> None:
    """Configure the root logger of this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter()
        if style == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("aiohttp.access").disabled = True  # lcpd.access says the same, once
    logging.getLogger("aiohttp.server").addFilter(without_bytes)


def without_bytes(record: logging.LogRecord) -> bool:
    """A filter that tells of broken HTTP what it is and not what was sent: a key or a prompt may be part of that."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args = f"{record.getMessage()}: it is no HTTP ({type(error).__name__})", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()
