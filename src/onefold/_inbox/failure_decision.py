"""The fate of a message whose handler failed: another attempt after a pause, or a dead letter. Decided without I/O.

Invariant: what was handled meanwhile, by another delivery of it, has not failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold._inbox.consumer import Consumer
from onefold._inbox.permanent_failures import is_final
from onefold._kernel.clock import milliseconds
from onefold._policy.backoff import Draw
from onefold.errors import TransactionMisused


@dataclass(frozen=True, slots=True)
class AttemptsSoFar:
    """What is written down of a message so far. Without a row it was started once: just now."""

    state: str = "waiting"
    started: int = 1
    failed: int = 0


@dataclass(frozen=True, slots=True)
class FailureDecision:
    """What is to be written down. `due_ms` is the pause until the next attempt; a dead letter has none."""

    failed: int
    started: int
    due_ms: int | None


def decide_failure(
    consumer: Consumer, error: Exception, before: AttemptsSoFar, *, is_handled: bool, draw: Draw
) -> FailureDecision | None:
    """None: it was handled by another delivery, and this one is a duplicate."""
    if is_handled and not isinstance(error, TransactionMisused):
        return None
    failed = before.failed + 1
    started = max(before.started, failed)
    pause_ms = milliseconds(consumer.backoff.pause_s(failed, draw=draw))
    # A handler that committed by itself has its rows and its ledger row: running it again would change nothing.
    is_last = failed >= consumer.attempts or before.state == "dead"
    if is_last or is_handled or is_final(error, consumer.dead_letter_on):
        return FailureDecision(failed, started, None)
    return FailureDecision(failed, started, pause_ms)
