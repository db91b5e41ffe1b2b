"""Decides whether an attempt at a work may go on: it has not ended, it still holds its work, and the outcome of each
step is known.

Invariant: no step is begun by an attempt that has ended (`leave`), was taken over, is parked, or does not know whether
its last step is recorded. Where a step outlives its attempt, the step gives the lease back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from onefold._kernel.log_context import log_extra
from onefold._kernel.readable import one_line
from onefold._steps.model import Held, RecordedStep
from onefold._steps.step_telemetry import StepReporter
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import Works, note_taken_over
from onefold.errors import OutcomeUnknown, ResultUnreadable, StoreError, WorkMisused, WorkParked

_log: Final = logging.getLogger("onefold.steps")

_REASON_CHARS_MAX: Final = 600

_REENTER_SEALED: Final = (
    ". It was entered (`onefold keys resume --result`) without the keys of this application: enter it again, with "
    "--app, or with --unsealed if it has no Keyring"
)


class AttemptGuard:
    """Guards one attempt at a work."""

    def __init__(
        self,
        works: Works,
        held: Held | None,
        operation: str,
        renewals: LeaseRenewals,
        reporter: StepReporter,
        describe_parked: Callable[[str], str],
    ) -> None:
        """`held`: None where the work is done already, and its steps answer from their records. `describe_parked`:
        makes the error text for callers when the work waits for a person, from the reason."""
        self._works = works
        self._held = held
        self._operation = operation
        self._renewals = renewals
        self._reporter = reporter
        self._describe_parked = describe_parked
        #: Steps that were called and not begun: coroutines that were not awaited.
        self.unbegun = 0
        #: The step whose COMMIT was interrupted: it may be recorded or not, so that the attempt must not go on.
        self.unsure: str | None = None
        #: Whether the request or the block has ended.
        self.is_left = False
        self._parked: WorkParked | None = None
        #: The reason for which this attempt has parked the work, if it has.
        self.parked: str | None = None

    @property
    def held(self) -> Held:
        """The work that this attempt does. Raises WorkTakenOver."""
        assert self._held is not None
        if self._held.taken_over:
            raise note_taken_over(self._held)
        return self._held

    def check_next(self, step: str) -> None:
        """The attempt goes on with another step. Raises WorkMisused, OutcomeUnknown, WorkParked, WorkTakenOver."""
        self.unbegun -= 1
        if self.is_left:
            raise self.too_late(step)
        self._check_outcomes()
        if self._held is not None:
            _ = self.held

    def check_end(self, *, is_running: bool) -> None:
        """The attempt ends with an answer. Raises WorkMisused, OutcomeUnknown, WorkParked."""
        if self.unbegun:
            raise WorkMisused(
                f"{self._operation} called a step and did not await it, so that it did not happen: write `await "
                "work.phase(...)`, `await work.call(...)`, `await work.finish(...)`. Nothing was stored"
            )
        if is_running:
            raise WorkMisused(
                f"{self._operation} ended while one of its steps was under way: wait for each. Nothing was stored"
            )
        self._check_outcomes()

    def too_late(self, step: str) -> WorkMisused:
        return WorkMisused(
            f"{step} of {self._operation} was called after that had ended, by a task, a thread or a background task "
            "that outlived it: nothing of it is kept. Wait for each step before the end"
        )

    async def park(self, name: str) -> WorkParked:
        """A call that must not be made twice was begun by an earlier attempt: leave the work to a person."""
        held, reason = self.held, f"outcome unknown: {name}"
        await self._works.park(held, reason)
        why = (
            f"call {name!r} was begun by an earlier attempt, its outcome is not known, and it must not be made again "
            "(repeatable=False). Find out what became of it"
        )
        return self._leave_to_person(held, reason, why)

    async def park_told(self, recorded: RecordedStep, error: ResultUnreadable | StoreError) -> WorkParked:
        """Park the work again: the result that an operator entered for a call cannot be read, so that its outcome is
        still unknown. The result stays with the mark, for the operator who corrects it."""
        held = self.held
        way_out = "" if isinstance(error, ResultUnreadable) else _REENTER_SEALED
        problem = f"the outcome was entered in a wrong form, and was not used: {error}{way_out}"
        reason = one_line(problem, _REASON_CHARS_MAX)
        await self._works.park(held, reason, recorded._replace(state="started"))
        return self._leave_to_person(held, reason, reason)

    def _leave_to_person(self, held: Held, reason: str, why: str) -> WorkParked:
        """Log and report that the work is parked, for this reason; `why` is its text in the log."""
        work = held.digest.hex()
        _log.error(
            "%s is parked (work %s): %s. Then `onefold keys resume %s` with --result or --again, or `onefold keys "
            "release %s`", self._operation, work, why, work, work, extra=log_extra("work.parked", work=work),
        )  # fmt: skip
        self._renewals.drop(held)
        self._reporter.report_parked(held.attempts, reason)
        self.parked = reason
        self._parked = WorkParked(self._describe_parked(reason))
        return self._parked

    async def end_step(self, held: Held) -> None:
        """End a step: the lease is renewed again, or given back if the attempt has ended meanwhile."""
        self.renew_again(held)
        if self.is_left and not held.taken_over:
            await self._works.give_back(held)

    def renew_again(self, held: Held) -> None:
        """End a step without awaiting anything: its lease is renewed again, unless the attempt has ended."""
        if held.taken_over or self.is_left:
            self._renewals.drop(held)
        else:
            self._renewals.hold(held)

    def _check_outcomes(self) -> None:
        if self.unsure is not None:
            raise OutcomeUnknown(
                f"the end of {self.unsure} of {self._operation} was interrupted, and whether it is recorded is "
                "unknown: this attempt ends, and the next one finds out"
            )
        if self._parked is not None:
            raise self._parked
