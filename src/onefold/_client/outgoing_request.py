"""What an adapter brings: one request of an HTTP client, how to send it once, what its answers and errors mean."""

from __future__ import annotations

import json
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qs, unquote, urljoin, urlsplit

from onefold._kernel.redaction import redact
from onefold._policy.outcome import Answered, Unanswered
from onefold._policy.retry_after import retry_after_ms_s, retry_after_s
from onefold.errors import CallNotMade

KEY_HEADER: Final = "Idempotency-Key"

#: An answer whose Content-Length has no more digits than this, less than a megabyte, is read within its attempt, so
#: that one that breaks off is retried like one that never came. Longer ones are handed on while they arrive.
_SHORT_DIGITS: Final = 6
SHORT_BYTES_MAX: Final = 10**_SHORT_DIGITS

#: Of an answer of unknown length, so much is read. A longer one is passed on while it arrives, and the type of its
#: problem is not known.
UNSIZED_BYTES_MAX: Final = 65_536

#: A problem with more arrays and objects is not looked into. A parser that goes down to where the stack ends may meet
#: the garbage collector there, and what that frees could not run its own end: a connection would be left open.
_BRACKETS_MAX: Final = 200

#: Streams, which come for as long as there is something to send: they are passed on while they arrive.
_STREAMS: Final = (
    "text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-seq",
    "application/stream+json", "application/grpc", "multipart/x-mixed-replace", "audio/", "video/",
)  # fmt: skip

#: What to do where an answer that is read within its attempt was meant to be read while it arrives.
STREAM_ADVICE: Final = (
    "the answer does not say how long it is, and was not whole in time; where it is meant to be read while it arrives, "
    "say so: with onefold.clients.options(stream=True)"
)

_CHAIN_MAX: Final = 16
_SHOULD_RETRY: Final = {"true": True, "false": False}

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class OutgoingRequest(Protocol[R_contra]):
    """One request of some HTTP client. What may wait returns an awaitable on asyncio, and the value on threads."""

    method: str
    host: str
    streams: bool
    """The caller reads the answer while it arrives, however long that takes."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The caller's options for this very request, where the client has a place for them: "intent", "deadline_s",
        "attempts_max", "attempt_s", "stream". Empty where there are none."""
        ...

    def address(self) -> str:
        """The whole URL."""
        ...

    def header(self, name: str) -> str | None: ...
    def set_header(self, name: str, value: str) -> None: ...

    def can_be_resent(self) -> bool:
        """The body can be sent more than once."""
        ...

    def body(self) -> Any:
        """The whole body, as bytes, whether it was sent already or not; it can still be sent afterwards."""
        ...

    def patience_s(self, left_s: float) -> float:
        """How long an attempt waits for its answer: what is left, or the client's own limit where that is shorter."""
        ...

    def send(self, seconds: float) -> Any:
        """One attempt, which takes no longer than this; the response."""
        ...

    def status(self, response: R_contra) -> int: ...
    def answer_header(self, response: R_contra, name: str) -> str | None: ...

    def content(self, response: R_contra) -> bytes | None:
        """The body, unpacked, where `send` has read it (see `bytes_to_read`); None where it has not."""
        ...

    def discard(self, response: R_contra) -> Any:
        """It will not be read: free its connection."""
        ...

    def classify_error(self, error: Exception) -> Unanswered | None:
        """What an error of the network means; None for every other error, which is not retried."""
        ...

    def not_made_error(self, message: str) -> CallNotMade:
        """The error for an attempt that is not made, as one of the client's own: see `not_made_class`."""
        ...


def fingerprint(request: OutgoingRequest[Any], body: bytes) -> bytes:
    """The hash of a request: the same in every process. The boundary of a multipart body is drawn anew each time, and
    means nothing."""
    content_type = request.header("Content-Type") or ""
    _, found, boundary = content_type.partition("boundary=")
    if found and (mark := boundary.partition(";")[0].strip().strip('"').encode()):
        body = body.replace(mark, b"")
    hashed = blake2b(digest_size=16)
    for part in (request.method.encode(), request.address().encode(), body):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def fetches_token(request: OutgoingRequest[Any], body: bytes) -> bool:
    """Whether it fetches an access token (RFC 6749, 4 and 6): an SDK does so by itself, in the middle of another
    call."""
    if request.method != "POST":
        return False
    if "grant_type" in parse_qs(urlsplit(request.address()).query):
        return True
    if b"grant_type" not in body:
        return False
    match (request.header("Content-Type") or "").partition(";")[0].strip().lower():
        case "application/x-www-form-urlencoded":
            return "grant_type" in parse_qs(body.decode("latin-1"))
        case "application/json":
            try:
                found = json.loads(body)
            except (ValueError, RecursionError):
                return False
            return isinstance(found, dict) and "grant_type" in found
        case _:
            return False


def normalize_url(address: str, moved_to: str = "") -> tuple[str, ...]:
    """An address, or where a redirect from it leads, in one spelling: clients encode and quote it each in their own."""
    parts = urlsplit(urljoin(address, moved_to))
    host = parts.netloc.rpartition("@")[2].lower()
    return parts.scheme, host, unquote(parts.path) or "/", unquote(parts.query)


def meaning_of(status: int, header: Callable[[str], str | None], body: Callable[[], bytes | None]) -> Answered:
    """What an answer says about another attempt, by the headers of HTTP, of Stripe and of OpenAI, and the problem
    documents of onefold: `retryable` false is no, and true leaves it to the status."""
    problem = _members(body()) if _is_problem(header("Content-Type")) else {}
    kind = problem.get("type")
    should_retry = _SHOULD_RETRY.get((header("Stripe-Should-Retry") or header("X-Should-Retry") or "").strip().lower())
    if should_retry is None and problem.get("retryable") is False:
        should_retry = False
    wait_s = retry_after_ms_s(header("Retry-After-Ms"))
    if wait_s is None:
        wait_s = retry_after_s(header("Retry-After"), date=header("Date"), wall_s=time.time())
    return Answered(
        status=status,
        problem_type=kind if isinstance(kind, str) else None,
        retry_after_s=wait_s,
        should_retry=should_retry,
    )


def target(request: OutgoingRequest[Any]) -> str:
    """Where a request goes, for people: without user, password, query, and what may be a token in the path."""
    return f"{request.method} {redact(request.address(), with_path=True)}"


def bytes_to_read(length: str | bytes | None) -> int:
    """How much of an answer of this Content-Length is read within its attempt: all of a short one."""
    return SHORT_BYTES_MAX if length is not None and len(length) <= _SHORT_DIGITS and length.isdigit() else 0


def unsized_bytes_to_read(status: int, content_type: str | None, accepted: str | None) -> int:
    """How much is read of an answer of unknown length: its beginning, which nearly always is all of it. Of a success
    only where neither it nor its request has the type of a stream; of an error always, because whether to try again may
    depend on it, and once it is read, the next attempt has its connection."""
    if status >= 400:
        return UNSIZED_BYTES_MAX
    if status < 200 or any((header or "").strip().lower().startswith(_STREAMS) for header in (content_type, accepted)):
        return 0
    return UNSIZED_BYTES_MAX


def is_certificate_error(error: BaseException) -> bool:
    """Whether the host's certificate was not accepted, which another attempt will not change."""
    cause: BaseException | None = error
    for _ in range(_CHAIN_MAX):
        if cause is None or isinstance(cause, ssl.SSLCertVerificationError):
            return cause is not None
        cause = cause.__cause__ or cause.__context__
    return False


def _is_problem(content_type: str | None) -> bool:
    return (content_type or "").partition(";")[0].strip().lower() == "application/problem+json"


def _members(body: bytes | None) -> dict[str, Any]:
    """Those of a problem document; none where it cannot be read."""
    body = body or b""
    if body.count(b"[") + body.count(b"{") > _BRACKETS_MAX:
        return {}
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def unpack(body: bytes, encoding: str | None) -> bytes | None:
    """Without its content coding, up to the limit: a few kilobytes may unpack into gigabytes. None: it cannot be."""
    match (encoding or "identity").strip().lower():
        case "identity":
            return body
        case "gzip" | "x-gzip" | "deflate":
            try:
                return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, SHORT_BYTES_MAX)
            except zlib.error:
                return None
        case _:
            return None


@cache
def not_made_class(kind: type[Exception]) -> Any:
    """CallNotMade as an error of some HTTP client as well: code that handles that client's errors handles this one."""
    return type("CallNotMade", (CallNotMade, kind), {"__module__": CallNotMade.__module__, "__reduce__": _reduce})


def _reduce(error: Exception) -> tuple[Any, ...]:
    """For pickle, which would look for the class where CallNotMade itself is. The request stays behind: what it came
    through cannot be sent to another process."""
    kept = {name: value for name, value in error.__dict__.items() if name in ("onefold_report", "__notes__")}
    return _remake, (type(error).__bases__[1], str(error)), kept


def _remake(kind: Any, message: str) -> Exception:
    error: Exception = not_made_class(kind)(message)
    return error
