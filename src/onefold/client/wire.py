"""What an adapter brings: one request of an HTTP client, how to send it once, what its answers and errors mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar

from onefold.errors import CallNotMade, ConfigurationError
from onefold.policy.outcome import Unanswered

KEY_HEADER: Final = "Idempotency-Key"

#: An answer whose Content-Length has no more digits than this, less than a megabyte, is read within its attempt, so
#: that one that breaks off is retried like one that never came. Longer ones, and those that do not say how long they
#: are, are handed on while they arrive.
_SHORT_DIGITS: Final = 6

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Wire(Protocol[R_contra]):
    """One request of some HTTP client. What may wait returns an awaitable on asyncio, and the value on threads."""

    method: str
    host: str

    @property
    def options(self) -> Mapping[str, Any]:
        """What the caller said about this very request, where the client has a place for it: "intent", "deadline_s",
        "attempts_max". Empty where nothing was said."""
        ...

    def address(self) -> str:
        """The whole URL."""
        ...

    def header(self, name: str) -> str | None: ...
    def set_header(self, name: str, value: str) -> None: ...

    def replayable(self) -> bool:
        """The body can be sent more than once."""
        ...

    def body(self) -> Any:
        """The whole body, as bytes; it can still be sent afterwards."""
        ...

    def patience_s(self, left_s: float) -> float:
        """How long an attempt waits for its answer: what is left, or the client's own limit where that is shorter."""
        ...

    def send(self, seconds: float) -> Any:
        """One attempt, which takes no longer than this; the response."""
        ...

    def status(self, response: R_contra) -> int: ...
    def answer_header(self, response: R_contra, name: str) -> str | None: ...

    def problem(self, response: R_contra) -> str | None:
        """The `type` in the body of an application/problem+json response that `send` has read (see `reads_whole`)."""
        ...

    def discard(self, response: R_contra) -> Any:
        """Nobody will read it: free its connection."""
        ...

    def unanswered(self, error: Exception) -> Unanswered | None:
        """What an error of the network means; None for every other error, which is not retried."""
        ...

    def not_made(self, message: str) -> CallNotMade:
        """The error for an attempt that is not made, as one of the client's own: see `not_made_as`."""
        ...


def fingerprint(wire: Wire[Any], body: bytes) -> bytes:
    """What is asked: the same request has the same one, in every process. The boundary of a multipart body is drawn
    anew each time, and means nothing."""
    content_type = wire.header("Content-Type") or ""
    _, found, boundary = content_type.partition("boundary=")
    if found and (mark := boundary.partition(";")[0].strip().strip('"').encode()):
        body = body.replace(mark, b"")
    hashed = blake2b(digest_size=16)
    for part in (wire.method.encode(), wire.address().encode(), body):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def checked(wire: Wire[Any], name: str, value: object, *, least: int) -> None:
    """Refuse an option of this request that is no number, or one that makes no sense, before anything is sent."""
    if value is None or (isinstance(value, int | float) and value >= least):
        return
    raise ConfigurationError(f"{name}={value!r} of {wire.method} {wire.address()} must be a number, {least} or more")


def target(wire: Wire[Any]) -> str:
    """Where a request goes, for people: without the query, which may hold what nobody else should read."""
    return f"{wire.method} {wire.address().partition('?')[0].partition('#')[0]}"


def reads_whole(length: str | None, content_type: str | None) -> bool:
    """An answer with these headers is read within its attempt. A problem is, whether or not it says how long it is:
    whether to try again may depend on it."""
    return is_problem(content_type) if length is None else is_short(length)


def is_short(length: str | bytes) -> bool:
    """This Content-Length is short enough."""
    return len(length) <= _SHORT_DIGITS and length.isdigit()


def is_problem(content_type: str | None) -> bool:
    """It is a problem document."""
    return (content_type or "").partition(";")[0].strip().lower() == "application/problem+json"


def problem_type(body: bytes) -> str | None:
    """The `type` of a problem document."""
    try:
        found = json.loads(body)
    except ValueError:
        return None
    named = found.get("type") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None


@cache
def not_made_as(kind: type[Exception]) -> Any:
    """CallNotMade as an error of some HTTP client as well: who handles that client's errors handles this one."""
    return type("CallNotMade", (CallNotMade, kind), {"__module__": CallNotMade.__module__})
