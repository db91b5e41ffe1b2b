"""Refusals as `application/problem+json` (RFC 9457), with a stable type and whether a retry can help."""

from __future__ import annotations

import json
import math

from onefold._http.request import Headers, Response
from onefold._idempotency.encryption import UnreadableAnswer
from onefold.errors import (
    AnsweredError,
    AuthenticationBroken,
    OnefoldError,
    OutcomeUnknowable,
    OutcomeUnknown,
    PoolExhausted,
    ProgrammerError,
    SchemaMissing,
    StoreError,
    StoreReadOnly,
    WorkChanged,
    WorkUnreadable,
)

TYPE_PREFIX = "urn:onefold:problem:"

#: The details for a caller when the store fails. The cause (tables, files, keys, hosts) is the operator's: it is in the
#: log only.
_STORE_DETAIL = "Nothing was decided. Retry later with the same Idempotency-Key."
_STORE_DETAILS: dict[type[StoreError], str] = {
    OutcomeUnknown: "The request may have happened. Retry later with the same Idempotency-Key: it happens once.",
    OutcomeUnknowable: "The request may have happened, and it had no Idempotency-Key. Look before you repeat it.",
    PoolExhausted: "Nothing was done: every connection to the database was in use. Retry later.",
    SchemaMissing: "Nothing was done. The operator must run `onefold migrate` first.",
    StoreReadOnly: "Nothing was done. The operator must make the store writable first.",
    WorkUnreadable: "The request was begun, and nothing more was done. The operator must look after its steps.",
    UnreadableAnswer: "The request completed, and will not run again. The operator must look after its stored answer.",
}


_ASK_AGAIN_S = 1.0

#: No mistake of a single request: clients meet it whenever such a release is deployed, and the log says what to do.
_CHANGED_DETAIL = (
    "This request was begun before the application was changed, and cannot be completed as the application is now. "
    "Nothing was stored. The operator of this service must act first; do not send it under another Idempotency-Key, "
    "or it may happen twice."
)


def problem(error: OnefoldError, *, described_by: str | None = None) -> Response:
    """The response to a caller for an error."""
    if isinstance(error, AnsweredError):
        detail = _STORE_DETAILS.get(type(error), _STORE_DETAIL) if isinstance(error, StoreError) else error.detail
        response = _response(
            error.status, error.slug, error.title, detail, error.retryable, error.retry_after_s, described_by
        )
        return response._replace(headers=response.headers + error.headers) if error.headers else response
    if isinstance(error, WorkChanged):
        return _response(500, error.slug, error.title, _CHANGED_DETAIL, False, None, described_by)
    if isinstance(error, AuthenticationBroken):  # most often a service that it needs is down, and nothing was done
        return _response(500, error.slug, error.title, str(error), True, _ASK_AGAIN_S, described_by)
    if isinstance(error, ProgrammerError):
        return _response(500, error.slug, error.title, str(error), False, None, described_by)
    title = "The request could not be completed"
    return _response(500, "statement-refused", title, "See the application's log.", False, None, described_by)


def _response(
    status: int,
    slug: str,
    title: str,
    detail: str,
    retryable: bool,
    retry_after_s: float | None,
    described_by: str | None,
) -> Response:
    body = json.dumps(
        {
            "type": TYPE_PREFIX + slug,
            "title": title,
            "status": status,
            "detail": detail,
            "retryable": retryable,
        }
    ).encode()
    headers: Headers = (
        (b"content-type", b"application/problem+json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    )
    if retryable:
        headers += ((b"retry-after", str(math.ceil(retry_after_s or 1)).encode()),)
    if described_by is not None:
        headers += ((b"link", f'<{described_by}>; rel="describedby"'.encode()),)
    return Response(status, headers, body)
