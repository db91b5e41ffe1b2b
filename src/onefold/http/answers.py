"""Between a response and its stored form: which headers are kept, how both are written, how they come back.

Headers are an allow-list: what is not named here or by the route (cookies, challenges, tokens) is never stored.
"""

from __future__ import annotations

from functools import lru_cache

from onefold.errors import AnswerNotKept
from onefold.http.messages import Headers, Response
from onefold.idempotency.model import Answer
from onefold.idempotency.sealing import Sealer, UnreadableAnswer

HEADERS_KEPT = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-location",
        "content-type",
        "etag",
        "last-modified",
        "link",
        "location",
        "vary",
    }
)

REPLAYED: Headers = ((b"idempotent-replayed", b"true"),)

#: What a sealed value is bound to besides its record: neither part passes for the other.
_HEADERS = b"headers"
_BODY = b"body"

_PLAIN = b"\x00"
_SEALED = b"\x01"

#: Statuses without a body, and so without a length.
_BODILESS = frozenset({204, 304})


def stored(
    response: Response, *, digest: bytes, kept: bool, headers_kept: frozenset[str], sealer: Sealer | None
) -> Answer:
    """What is kept of a response. With `kept` false its body is not: the record becomes a tombstone."""
    allowed = _allowed(headers_kept)
    head = b"\r\n".join([b"%b:%b" % line for line in response.headers if line[0] in allowed])
    body = response.body if kept else None
    if sealer is None:
        return Answer(response.status, _PLAIN + head, None if body is None else _PLAIN + body)
    return Answer(
        response.status,
        _SEALED + sealer.seal(head, digest + _HEADERS),
        None if body is None else _SEALED + sealer.seal(body, digest + _BODY),
    )


@lru_cache(maxsize=64)
def _allowed(headers_kept: frozenset[str]) -> frozenset[bytes]:
    return frozenset(name.encode("latin-1") for name in HEADERS_KEPT | headers_kept)


def replayed(answer: Answer, *, digest: bytes, sealer: Sealer | None) -> Response:
    """The stored answer as a response, marked as a replay."""
    if answer.body is None:
        raise AnswerNotKept(
            f"The request completed with status {answer.status}; its body was larger than this route keeps. "
            "It will not run again: read the resource instead."
        )
    head = _open(answer.headers, digest + _HEADERS, sealer)
    body = _open(answer.body, digest + _BODY, sealer)
    headers = tuple((name, value) for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")) if name)
    length = () if answer.status in _BODILESS else ((b"content-length", str(len(body)).encode()),)
    return Response(answer.status, headers + length + REPLAYED, body)


def _open(closed: bytes, context: bytes, sealer: Sealer | None) -> bytes:
    tag, content = closed[:1], closed[1:]
    if tag == _PLAIN:
        return content
    if tag == _SEALED and sealer is not None:
        return sealer.unseal(content, context)
    if tag == _SEALED:
        raise UnreadableAnswer("a stored answer is sealed and this process has no keys; pass sealer=Keyring(...)")
    raise UnreadableAnswer(f"a stored answer starts with {tag!r}, which this release does not know")
