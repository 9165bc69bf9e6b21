"""What the tests of commands that ask a running daemon share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer


@contextmanager
def served(http: HTTPServer) -> Iterator[None]:
    """A stand-in for the daemon that answers for the time being."""
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
