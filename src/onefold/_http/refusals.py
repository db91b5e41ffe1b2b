"""What a request is told that does not run, or whose handler ended badly, where there is no answer to replay."""

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
    """What to report of a refused claim, and what to tell its caller."""
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


class RefusedRequest(ReportedRequest):
    """A request, as far as it is told what went wrong."""

    def _answer_misuse(self, found: OnefoldError | None) -> Response | None:
        """What is answered in place of something better where the handler has committed by itself."""
        return self._guard.refusal(found, self.request) if isinstance(found, TransactionMisused) else None

    def _answer_lost(self, found: OnefoldError | None, raised: BaseException | None) -> Response | None:
        """What is answered where the connection was lost: what was raised tells no more than that, as a rule."""
        if not isinstance(found, ConnectionLost) or raised is None:
            return None
        failure = StoreUnavailable(f"{found} before anything was committed; a retry runs again")
        failure.__cause__ = raised
        return self._guard.log_and_refuse(failure, self.request, self.operation)
