"""Bodies that were compressed on their way (Content-Encoding).

The server hands them over as they came (`auto_decompress=False`): what it could not decode it would refuse with an
error of its own, which is no JSON.
"""

from __future__ import annotations

import zlib

from lcpd.api.errors import ApiError, bad_request, too_large

_GZIP = 16 + zlib.MAX_WBITS
_ZLIB, _RAW = zlib.MAX_WBITS, -zlib.MAX_WBITS
_KNOWN = "gzip, deflate"
_HEADER = "Content-Encoding"


def decoded(data: bytes, encoding: str, most: int) -> bytes:
    """The body as it was before it was encoded; `most`: bytes that it may have then.  Raises ApiError."""
    match encoding.strip().lower():
        case "" | "identity":
            return data
        case "gzip" | "x-gzip":
            return _inflated(data, _GZIP, most)
        case "deflate":
            # Some clients leave out the frame that belongs around it.
            return _inflated(data, _ZLIB if data[:1] and data[0] & 15 == zlib.DEFLATED else _RAW, most)
    raise ApiError(
        415,
        f"A body with the {_HEADER} {encoding} cannot be read here, only {_KNOWN} and those without.",
        param=_HEADER,
        headers={"Accept-Encoding": _KNOWN},
    )


def _inflated(data: bytes, wbits: int, most: int) -> bytes:
    stream = zlib.decompressobj(wbits)
    try:
        plain = stream.decompress(data, most + 1)
    except zlib.error as error:
        raise bad_request(f"The body cannot be read: {error}.", _HEADER) from error
    if len(plain) > most:
        raise too_large(most)
    if not stream.eof or stream.unused_data:
        raise bad_request("The body cannot be read: its compressed data end too soon or go on too far.", _HEADER)
    return plain
