"""Between a response and its stored form: which headers are kept, how both are written, how they come back.

Headers are an allow-list: what is not named here or by the route (cookies, challenges, tokens) is never stored.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from os import urandom
from typing import NamedTuple

from onefold._http.request import Headers, Response
from onefold._idempotency.encryption import Sealer, UnreadableAnswer
from onefold._idempotency.model import Answer, Ask, Record
from onefold.errors import AnswerNotKept

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

#: Answers about the caller's rights or pace, not about the request: a corrected or later retry must run.
NOT_STORED = frozenset({401, 403, 407, 408, 425, 429})

REPLAYED: Headers = ((b"idempotent-replayed", b"true"),)

#: What a sealed value is bound to besides its record: neither part passes for the other.
_HEADERS = b"headers"
_BODY = b"body"

_PLAIN = b"\x00"
_SEALED_1 = b"\x01"  # onefold 0.1: bound to the digest only
_SEALED = b"\x02"

_RUN_ID_BYTES = 6

#: Statuses without a body, and so without a length.
_BODILESS = frozenset({204, 304})


def new_run_id() -> bytes:
    """What distinguishes one run of a handler from others with the same key. Short: it is stored with each."""
    return b2a_base64(urandom(_RUN_ID_BYTES), newline=False)


def make_answer(
    response: Response,
    ask: Ask,
    run_id: bytes,
    *,
    whole: bool,
    headers_kept: frozenset[str],
    sealer: Sealer | None,
    span: Mapping[str, str],
) -> Answer:
    """What is kept of a response. With `whole` false its body is not: the record becomes a tombstone.

    The id of the run is a line without a name, which no replay repeats. A process that looks for a COMMIT whose answer
    was lost recognises its own by it: another run of the same request, after a takeover, may answer the same. So is
    the context of the `span` that it ran in, where traces are made: a release that does not know it passes over it.
    """
    allowed = _encode_names(headers_kept)
    lines = [b"%b:%b" % line for line in response.headers if line[0] in allowed]
    lines.append(b":" + run_id)
    if span:
        lines += [b":%b:%b" % (name.encode(), value.encode()) for name, value in span.items()]
    head = b"\r\n".join(lines)
    body = response.body if whole else None
    if sealer is None:
        return Answer(response.status, _PLAIN + head, None if body is None else _PLAIN + body)
    context = _context(ask.digest, ask.operation, response.status, whole)
    headers = _SEALED + sealer.seal(head, context + _HEADERS)
    if body is None:
        return Answer(response.status, headers, None)
    return Answer(response.status, headers, _SEALED + sealer.seal(body, context + headers + _BODY))


@lru_cache(maxsize=64)
def _encode_names(headers_kept: frozenset[str]) -> frozenset[bytes]:
    return frozenset(name.encode("latin-1") for name in HEADERS_KEPT | headers_kept)


class Reading(NamedTuple):
    """How stored answers are read."""

    sealer: Sealer | None = None
    unsealed: bool = False
    """Whether answers from before there was a sealer are read beside it."""
    reads_earlier: Callable[[], bool] = lambda: True
    """Whether answers that onefold 0.1 sealed are read: their status is not bound to them."""

    def head(self, record: Record) -> bytes:
        """The stored headers, or UnreadableAnswer."""
        return self._open(record, record.headers, part=_HEADERS)

    def body(self, record: Record, body: bytes) -> bytes:
        """The stored body, or UnreadableAnswer. It opens with its own headers only."""
        if body[:1] != record.headers[:1]:
            raise UnreadableAnswer(
                f"the headers and the body of an answer of {record.operation} are stored differently"
            )
        return self._open(record, body, part=_BODY, beside=record.headers)

    def _open(self, record: Record, closed: bytes, *, part: bytes, beside: bytes = b"") -> bytes:
        tag, content = closed[:1], closed[1:]
        if tag == _PLAIN:
            if self.sealer is not None and not self.unsealed:
                raise UnreadableAnswer(
                    f"a stored answer of {record.operation} is not sealed, and this application seals its answers: it "
                    "was stored before (read those with unsealed_answers=True for one retention), or not by onefold"
                )
            return content
        if tag not in (_SEALED, _SEALED_1):
            raise UnreadableAnswer(f"a stored answer starts with {tag!r}, which this release does not know")
        if self.sealer is None:
            raise UnreadableAnswer("a stored answer is sealed and this process has no keys; pass sealer=Keyring(...)")
        if tag == _SEALED:
            context = _context(record.digest, record.operation, record.status, record.body is not None)
            return self.sealer.unseal(content, context + beside + part)
        if not self.reads_earlier() or record.version > 1:
            raise UnreadableAnswer("a stored answer was sealed by onefold 0.1; earlier_records=True reads it")
        return self.sealer.unseal(content, record.digest + part)


def make_replay(record: Record, *, headers_kept: frozenset[str], reading: Reading) -> Response:
    """The stored answer as a response, marked as a replay."""
    head = reading.head(record)
    if record.body is None:
        raise AnswerNotKept(
            f"The request completed with status {record.status}; its body was larger than this route keeps. "
            "It will not run again: read the resource instead."
        )
    body = reading.body(record, record.body)
    allowed = _encode_names(headers_kept)  # again: who can write the table must not set a cookie
    lines = [line.partition(b":") for line in head.split(b"\r\n")]
    headers = tuple([(name, value) for name, _, value in lines if name in allowed])
    length = () if record.status in _BODILESS else ((b"content-length", str(len(body)).encode()),)
    return Response(record.status, headers + length + REPLAYED, body)


def read_span(record: Record, reading: Reading) -> dict[str, str]:
    """The context of the span that a record was made in; empty where none was made. Raises UnreadableAnswer."""
    found: dict[str, str] = {}
    for line in reading.head(record).split(b"\r\n"):
        if line[:1] == b":" and (name := line[1:].partition(b":"))[1]:
            found[name[0].decode("latin-1")] = name[2].decode("latin-1")
    return found


def _context(digest: bytes, operation: str, status: int, has_body: bool) -> bytes:
    """What a sealed value belongs to: edit any of it, and the value does not open."""
    name = operation.encode("utf-8", "surrogatepass")
    return b"onefold.answer.2:%b%d:%b%d:%d:" % (digest, len(name), name, status, has_body)
