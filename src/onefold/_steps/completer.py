"""The completer: finishes requests that were begun in steps and left by their process and their client.

Theory of operation. A work whose lease ended some time ago is picked, one at a time, and its request is made again in
this process, without its client. The request claims its key as any other does: it takes the work over with its steps,
or finds that a retry of the client is at it already. So the completer needs no rights of its own, and every guarantee
of a retry holds for it. Then it reads the work again: one that is gone is completed; one that is still there has
failed, is tried again after a growing pause, and after so many attempts waits for a person.

Failure windows. A completer that dies leaves the work as any process would: its lease runs out, and the next one picks
it when it is due again. Two completers never pick one work within the pause that picking gives it; if they did, one of
them would find it in flight.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Call, Fetch
from onefold._kernel.log_context import LogField, log_extra
from onefold._kernel.readable import one_line
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.request_events import WorkAttemptFailed, WorkCompleted, WorkIsParked
from onefold._policy.backoff import Backoff, Draw
from onefold._policy.ranges import require
from onefold._steps.sql.completer_statements import STATEMENTS

_log = logging.getLogger("onefold.steps")

#: From picking a work to its claim: other completers leave it alone for so long.
_HOLD_S: Final = 60.0
#: How often, about, a completer looks for abandoned works.
COMPLETING_EVERY_S: Final = 30.0
#: No handler takes so long, unless it hangs.
ATTEMPT_S: Final = 600.0
_REASON_CHARS_MAX: Final = 500

Outcome: TypeAlias = Literal["completed", "failed", "parked", "busy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleterConfig:
    """When a work counts as left, and how often it is tried."""

    abandoned_after_s: float = 60.0
    """After its lease has ended: the client's own retry comes first."""
    attempts_max: int = 10
    """All of them count, also the client's."""
    attempt_s: float = ATTEMPT_S
    """A request that takes longer has failed, and the completer goes on with the next."""
    backoff: Backoff = field(default_factory=lambda: Backoff(transient_base_s=30.0, cap_s=3600.0))

    def __post_init__(self) -> None:
        require("abandoned_after_s", self.abandoned_after_s, least=0.0, most=7 * 86_400)
        require("attempt_s", self.attempt_s, least=0.001, most=86_400)
        require("attempts_max", self.attempts_max, least=1, most=1000, whole=True)


class Abandoned(NamedTuple):
    """A work to be completed."""

    digest: bytes
    operation: str
    attempts: int
    request: bytes
    """As it is stored."""


class CompletionAttempt(NamedTuple):
    """The result of a request that was made again."""

    status: int | None
    error: str | None = None
    """The error it raised."""

    @property
    def reason(self) -> str:
        reason = self.error or (f"status {self.status}" if self.status is not None else "no answer")
        return one_line(reason, _REASON_CHARS_MAX)


@dataclass(frozen=True, slots=True)
class CompletedWorks:
    """The counts of one round of the completer."""

    completed: int = 0
    failed: int = 0
    parked: int = 0


class Completer:
    """The flows of completing."""

    def __init__(
        self,
        dialect: str,
        attempt: Callable[[Abandoned], Any],
        *,
        config: CompleterConfig,
        draw: Draw,
        listener: Listener | None = None,
    ) -> None:
        """`attempt` makes the request again; what it returns, or gives when it is awaited, is a CompletionAttempt."""
        self._sql = STATEMENTS[dialect]
        self._attempt = attempt
        self._config = config
        self._draw = draw
        self._listener = listener

    async def complete(self, limit: int, stopped: Callable[[], bool] = lambda: False) -> CompletedWorks:
        """Try what is due, one after the other, at most so many."""
        counts: dict[Outcome, int] = {}
        for _ in range(limit):
            outcome = None if stopped() else await self.complete_one()
            if outcome is None:
                break
            counts[outcome] = counts.get(outcome, 0) + 1
        return CompletedWorks(counts.get("completed", 0), counts.get("failed", 0), counts.get("parked", 0))

    async def complete_one(self) -> Outcome | None:
        """Try the next one. None: nothing is due."""
        work = await with_connection(self._pick)
        if work is None:
            return None
        ended: CompletionAttempt = await Call(lambda: self._attempt(work))

        async def judge() -> Outcome:
            return await self._judge(work, ended)

        return await with_connection(judge)

    async def _pick(self) -> Abandoned | None:
        rows = await Fetch(self._sql.pick(self._config.abandoned_after_s, _HOLD_S))
        if not rows:
            return None
        [(digest, operation, attempts, request)] = rows
        return Abandoned(bytes(digest), operation, attempts, bytes(request))

    async def _judge(self, work: Abandoned, ended: CompletionAttempt) -> Outcome:
        await Batch((Boundary.BEGIN,))
        rows = await Fetch(self._sql.find(work.digest))
        if not rows:
            locked = await Fetch(self._sql.is_there(work.digest))
            await Batch((Boundary.ROLLBACK,))
            return "busy" if locked else self._report_completed(work, ended)
        attempts, parked, leased = rows[0]
        if parked is not None or leased:
            await Batch((Boundary.ROLLBACK,))
            # Parked by this attempt, which has reported it; leased by another one that has taken the work over.
            return "busy" if parked is None else "parked"
        # An attempt that failed before its claim counts, too: a route that is gone, a 401.
        attempts = max(attempts, work.attempts + 1)
        if attempts >= self._config.attempts_max:
            reason = f"failed {attempts} times: {ended.reason}"
            await Batch((self._sql.park(work.digest, attempts, reason), Boundary.COMMIT))
            return self._report_parked(work, attempts, reason)
        wait_s = self._config.backoff.pause_s(attempts, draw=self._draw)
        await Batch((self._sql.postpone(work.digest, attempts, wait_s), Boundary.COMMIT))
        return self._report_failed(work, attempts, ended.reason, wait_s)

    def _report_completed(self, work: Abandoned, ended: CompletionAttempt) -> Outcome:
        status = ended.status or 0
        _log.info(
            "%s (work %s), which was abandoned, is completed: status %d", work.operation, work.digest.hex(), status,
            extra=_describe("work.completed", work, work.attempts + 1),
        )  # fmt: skip
        emit(self._listener, WorkCompleted(work.operation, status, work.attempts + 1))
        return "completed"

    def _report_failed(self, work: Abandoned, attempts: int, reason: str, wait_s: float) -> Outcome:
        _log.warning(
            "%s (work %s), which was abandoned, could not be completed, attempt %d of %d: %s; tried again in %.3g s",
            work.operation, work.digest.hex(), attempts, self._config.attempts_max, reason, wait_s,
            extra=_describe("work.failed", work, attempts),
        )  # fmt: skip
        emit(self._listener, WorkAttemptFailed(work.operation, attempts, reason))
        return "failed"

    def _report_parked(self, work: Abandoned, attempts: int, reason: str) -> Outcome:
        _log.error(
            "%s (work %s) is parked and is not tried again: %s. Repair the cause, then `onefold keys resume %s`, or "
            "`release`", work.operation, work.digest.hex(), reason, work.digest.hex(),
            extra=_describe("work.parked", work, attempts),
        )  # fmt: skip
        emit(self._listener, WorkIsParked(work.operation, attempts, reason))
        return "parked"


def _describe(event: str, work: Abandoned, attempts: int) -> dict[str, dict[str, LogField]]:
    return log_extra(event, operation=work.operation, work=work.digest.hex(), attempt=attempts)
