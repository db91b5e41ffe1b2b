"""The answer to a request that does not run, or whose handler ended badly, where there is none to replay."""

from __future__ import annotations

from onefold._http.reported_request import ReportedRequest
from onefold._http.request import Response
from onefold._idempotency.model import Expired, InFlight, Mismatch
from onefold._kernel.telemetry.request_events import Outcome
from onefold.errors import (
    ConnectionLost,
    KeyExpired,
    KeyInFlight,
    KeyReused,
    OnefoldError,
    StoreUnavailable,
    TransactionMisused,
)


def refuse(claim: InFlight | Mismatch | Expired, retention_s: float) -> tuple[Outcome, OnefoldError]:
    """The outcome to report of a refused claim, and the error for its caller."""
    match claim:
        case InFlight(ask_again_s):
            return "in_flight", KeyInFlight(
                "The same request is being worked on. Retry with the same Idempotency-Key.", retry_after_s=ask_again_s
            )
        case Mismatch():
            return "mismatch", KeyReused(
                "This Idempotency-Key already names a request with another payload, path or query. Use a new key "
                "for a new request."
            )
        case Expired():
            return "expired", KeyExpired(
                f"This Idempotency-Key is older than {retention_s:.0f} s, the time this route "
                "remembers its answers. It was not run. Find out what became of it, then use a new key."
            )


def answer_misuse(guarded: ReportedRequest, error: OnefoldError | None) -> Response | None:
    """A refusal in place of the handler's answer, if the handler has committed by itself. None: its answer goes out.
    `error` is what was wrong when the request was undone."""
    return guarded.shared.refusal(error, guarded.request) if isinstance(error, TransactionMisused) else None


def answer_lost(guarded: ReportedRequest, error: OnefoldError | None, raised: BaseException | None) -> Response | None:
    """A 503 in place of the framework's 500, if the connection was lost: what the handler raised is as a rule a
    consequence of that. None: the framework answers what was raised."""
    if not isinstance(error, ConnectionLost) or raised is None:
        return None
    failure = StoreUnavailable(f"{error} before anything was committed; a retry runs again")
    failure.__cause__ = raised
    return guarded.shared.log_and_refuse(failure, guarded.request, guarded.operation)
