"""Clients that read nothing, vanish, or never finish what they send: raw sockets, so that no library is polite."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

from benchmarks.harm.load import Json

_SMALL = 4096
"""Bytes of the receive buffer of a client that does not read: full soon."""


def request_bytes(path: str, body: Json) -> bytes:
    """A POST as it goes over the wire."""
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload


def never_reads(port: int, body: Json) -> socket.socket:
    """Send a text completion's request and read nothing; the caller closes the socket."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL)
    sock.connect(("127.0.0.1", port))
    sock.sendall(request_bytes("/v1/completions", body))
    return sock


def half_open(port: int, body: Json, share: float = 0.5) -> socket.socket:
    """Send a part of a request and then nothing; the caller closes the socket."""
    sock = socket.create_connection(("127.0.0.1", port))
    data = request_bytes("/v1/completions", body)
    sock.sendall(data[: int(len(data) * share)])
    return sock


def reset(sock: socket.socket) -> None:
    """Close with RST, as a machine that has forgotten the connection does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def stream_body(prompt: str, length: int, **more: Any) -> Json:
    """A greedy streamed completion."""
    return {"prompt": prompt, "max_tokens": length, "temperature": 0, "ignore_eos": True, "stream": True, **more}
