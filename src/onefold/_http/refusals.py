"""What a request that does not run is told, where there is no answer to replay."""

from __future__ import annotations

from onefold._idempotency.model import Expired, InFlight, Mismatch
from onefold._kernel.telemetry.request_events import Outcome
from onefold.errors import KeyExpired, KeyInFlight, KeyReused, OnefoldError


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
