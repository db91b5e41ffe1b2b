"""The table of instruments: every metric, and the telemetry events that move it. docs/metrics.md shows it to users."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from onefold._kernel.telemetry.request_events import (
    Claimed,
    Reaped,
    Released,
    Settled,
    StepEnded,
    WorkAttemptFailed,
    WorkCompleted,
    WorkGivenUp,
)
from onefold._observe.instruments import AnyMove, Instrument, Move

# --- requests --------------------------------------------------------------------------------------------

REQUESTS: Final = Instrument(
    name="onefold.requests", kind="counter", unit="{request}", labels=("operation", "outcome"),
    help="Keyed requests by what their claim came to: run, replay, in_flight, mismatch, expired, unprotected, "
    "unavailable, limited",
)  # fmt: skip
REQUEST_DURATION: Final = Instrument(
    name="onefold.request.duration", kind="histogram", unit="s", labels=("operation", "end"),
    help="Seconds from a request's claim to its COMMIT (stored) or rollback (released)",
)  # fmt: skip
RELEASED: Final = Instrument(
    name="onefold.requests.released", kind="counter", unit="{request}", labels=("operation", "reason"),
    help="Requests that left nothing behind, by why",
)  # fmt: skip
DUPLICATES: Final = Instrument(
    name="onefold.duplicates", kind="counter", unit="{duplicate}", labels=("hop",),
    help="Duplicates absorbed at each hop: http (replays), consumer (messages handled before)",
)  # fmt: skip
REAPED: Final = Instrument(
    name="onefold.reaped", kind="counter", unit="{row}", labels=("what",),
    help="Rows deleted after their retention",
)  # fmt: skip
COMPLETIONS: Final = Instrument(
    name="onefold.completions", kind="counter", unit="{attempt}", labels=("operation", "outcome"),
    help="What the completer made of requests that were left: completed, failed, given_up",
)  # fmt: skip

STEPS: Final = Instrument(
    name="onefold.steps", kind="counter", unit="{step}", labels=("operation", "kind", "outcome"),
    help="Recorded steps by kind (phase, call, finish) and outcome: done, failed, recorded (answered from its record)",
)  # fmt: skip

INSTRUMENTS: Final = (
    REQUESTS, REQUEST_DURATION, RELEASED, DUPLICATES, REAPED, COMPLETIONS, STEPS,
)  # fmt: skip

MOVES: Final[Mapping[type, tuple[AnyMove, ...]]] = {
    Claimed: (
        Move(REQUESTS, attrgetter("operation", "outcome")),
        Move(DUPLICATES, lambda event: ("http",) if event.outcome == "replay" else None),
    ),
    Settled: (Move(REQUEST_DURATION, lambda event: (event.operation, "stored"), attrgetter("elapsed_s")),),
    Released: (
        Move(REQUEST_DURATION, lambda event: (event.operation, "released"), attrgetter("elapsed_s")),
        Move(RELEASED, attrgetter("operation", "reason")),
    ),
    Reaped: (Move(REAPED, lambda _: ("records",), attrgetter("records")),),
    StepEnded: (Move(STEPS, attrgetter("operation", "kind", "outcome")),),
    WorkCompleted: (Move(COMPLETIONS, lambda event: (event.operation, "completed")),),
    WorkAttemptFailed: (Move(COMPLETIONS, lambda event: (event.operation, "failed")),),
    WorkGivenUp: (Move(COMPLETIONS, lambda event: (event.operation, "given_up")),),
}
