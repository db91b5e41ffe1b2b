"""Errors of a request whose condition (If-Match, If-None-Match) cannot be read, is missing or does not hold."""

from __future__ import annotations

from onefold.errors import CallerError


class ConditionMalformed(CallerError):
    """If-Match or If-None-Match cannot be read as entity tags."""

    slug = "condition-malformed"
    title = "The condition of the request is malformed"


class ConditionFailed(CallerError):
    """What the request depends on (If-Match, If-None-Match) does not hold. Nothing was done. `detail` says why, `etag`
    is that of the state which was found."""

    status = 412
    slug = "condition-failed"
    title = "The condition of the request does not hold"

    def __init__(self, detail: str, *, etag: str | None = None) -> None:
        super().__init__(detail)
        self.etag = etag
        if etag is not None:
            self.headers = ((b"etag", etag.encode("latin-1")),)


class ConditionMissing(CallerError):
    """The route requires a condition, and the request has none."""

    status = 428
    slug = "condition-missing"
    title = "The request needs a condition"
