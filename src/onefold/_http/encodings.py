"""A stored answer in a content coding that its caller can read.

Middleware that compresses inside of the layer does so for the first caller, and that is what is stored. A retry may
come from another client, so what it does not accept is decoded, or refused: never sent as bytes it cannot read.
"""

from __future__ import annotations

import zlib

from onefold._http.request import Headers, Response, first_line
from onefold.errors import AnswerEncoded

#: What the standard library decodes; the number has zlib detect whether it is gzip or zlib.
_WINDOWS = {"gzip": 32 + zlib.MAX_WBITS, "x-gzip": 32 + zlib.MAX_WBITS, "deflate": 32 + zlib.MAX_WBITS}

#: No answer is decoded into more than this, so that a small record cannot fill the memory.
DECODED_BYTES_MAX = 1 << 26


def fit_encoding(response: Response, headers: Headers, *, tags_state: bool = False) -> Response:
    """The response as its caller, by these request headers, can read it. `tags_state`: its ETag names the state of a
    row, and not these bytes. Raises AnswerEncoded."""
    stated = first_line(response.headers, "content-encoding")
    if stated is None or not response.body:
        return response
    codings = [coding.strip().lower() for coding in stated.split(",") if coding.strip()]
    accepted = _read_accepted(headers)
    if all(_accepts(accepted, coding) for coding in codings):
        return response
    body = response.body
    for coding in reversed(codings):  # the last was applied last
        decoded = _decode(coding, body)
        if decoded is None:
            if accepted is None:  # it names nothing, and so by the standard accepts anything
                return response
            raise AnswerEncoded(
                f"The stored answer is encoded ({stated}), which this request does not accept, and cannot be decoded "
                f"here. Retry with the same Idempotency-Key and Accept-Encoding: {stated}."
            )
        body = decoded
    return Response(response.status, tuple(_rewrite_headers(response.headers, len(body), tags_state)), body)


def _read_accepted(headers: Headers) -> dict[str, bool] | None:
    """The codings that a request names, with whether it takes them. None: it names none."""
    lines = [value.decode("latin-1") for name, value in headers if name == b"accept-encoding"]
    if not lines:
        return None
    accepted = {}
    for item in ",".join(lines).split(","):
        coding, _, parameter = item.partition(";")
        name, _, weight = parameter.strip().partition("=")
        refused = name.strip().lower() == "q" and not weight.strip(" 0.")
        if coding.strip():
            accepted[coding.strip().lower()] = not refused
    return accepted


def _accepts(accepted: dict[str, bool] | None, coding: str) -> bool:
    if coding == "identity":
        return True
    if accepted is None:
        return False
    return accepted.get(coding, accepted.get("*", False))


def _decode(coding: str, body: bytes) -> bytes | None:
    if coding == "identity":
        return body
    if coding not in _WINDOWS:
        return None
    for window in (_WINDOWS[coding], -zlib.MAX_WBITS):  # some send raw deflate under that name
        decoder = zlib.decompressobj(window)
        try:
            decoded = decoder.decompress(body, DECODED_BYTES_MAX)
        except zlib.error:
            continue
        return decoded if decoder.eof else None
    return None


def _rewrite_headers(headers: Headers, length: int, tags_state: bool) -> list[tuple[bytes, bytes]]:
    kept = []
    for name, value in headers:
        if name == b"content-encoding":
            continue
        if name == b"content-length":
            value = str(length).encode()
        elif name == b"etag" and not tags_state and not value.startswith(b"W/"):  # it named the bytes, which differ
            value = b"W/" + value
        kept.append((name, value))
    return kept
