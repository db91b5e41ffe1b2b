"""Whether an attempt at a work may go on: it has not ended, its work is its own, and all that it did is known.

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
from onefold._steps.step_telemetry import StepTelling
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import Works, note_taken_over
from onefold.errors import OutcomeUnknown, ResultUnreadable, StoreError, WorkMisused, WorkParked

_log: Final = logging.getLogger("onefold.steps")

_REASON_CHARS_MAX: Final = 600

_TELL_SEALED: Final = (
    ". A person told it (`onefold keys resume --result`), and not with the keys of this application: tell it again, "
    "with --app that names it, or --unsealed where it has no Keyring"
)


class AttemptGuard:
    """Guards one attempt at a work."""

    def __init__(
        self,
        works: Works,
        held: Held | None,
        operation: str,
        renewals: LeaseRenewals,
        telling: StepTelling,
        describe_parked: Callable[[str], str],
    ) -> None:
        """`held`: None where the work is done already, and its steps answer from their records. `describe_parked`:
        what those who asked for the work are told when it waits for a person, by the reason."""
        self._works = works
        self._held = held
        self._operation = operation
        self._renewals = renewals
        self._telling = telling
        self._describe_parked = describe_parked
        #: Steps that were asked for and not begun: coroutines that were not awaited.
        self.unbegun = 0
        #: The step whose COMMIT was interrupted: it may be recorded or not, and nothing may be built on either.
        self.unsure: str | None = None
        #: Whether the request or the block has ended.
        self.is_left = False
        self._parked: WorkParked | None = None
        #: Why this attempt has left the work to a person, if it has.
        self.parked: str | None = None

    @property
    def held(self) -> Held:
        """The work that this attempt does. Raises WorkTakenOver."""
        assert self._held is not None
        if self._held.taken_over:
            raise note_taken_over(self._held)
        return self._held

    def check_next(self, asked: str) -> None:
        """The attempt goes on with another step. Raises WorkMisused, OutcomeUnknown, WorkParked, WorkTakenOver."""
        self.unbegun -= 1
        if self.is_left:
            raise self.too_late(asked)
        self._check_known()
        if self._held is not None:
            _ = self.held

    def check_end(self, *, is_running: bool) -> None:
        """The attempt ends with an answer. Raises WorkMisused, OutcomeUnknown, WorkParked."""
        if self.unbegun:
            raise WorkMisused(
                f"{self._operation} asked for a step and did not await it, so that it did not happen: write `await "
                "work.phase(...)`, `await work.call(...)`, `await work.finish(...)`. Nothing was stored"
            )
        if is_running:
            raise WorkMisused(
                f"{self._operation} ended while one of its steps was under way: wait for each. Nothing was stored"
            )
        self._check_known()

    def too_late(self, asked: str) -> WorkMisused:
        return WorkMisused(
            f"{asked} of {self._operation} was asked for when that had ended, by a task, a thread or a background task "
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

    async def park_told(self, told: RecordedStep, error: ResultUnreadable | StoreError) -> WorkParked:
        """What a person told of a call cannot be read, and nothing was done with it: its outcome is unknown as before.
        What was told stays with the mark, to be seen by the person who corrects it."""
        held = self.held
        way_out = "" if isinstance(error, ResultUnreadable) else _TELL_SEALED
        told_wrongly = f"outcome told in a wrong form, and nothing was done with it: {error}{way_out}"
        reason = one_line(told_wrongly, _REASON_CHARS_MAX)
        await self._works.park(held, reason, told._replace(state="started"))
        return self._leave_to_person(held, reason, reason)

    def _leave_to_person(self, held: Held, reason: str, why: str) -> WorkParked:
        """The work is parked, for this reason; `why` says the same for the log."""
        work = held.digest.hex()
        _log.error(
            "%s is parked (work %s): %s. Then `onefold keys resume %s` with --result or --again, or `onefold keys "
            "release %s`", self._operation, work, why, work, work, extra=log_extra("work.parked", work=work),
        )  # fmt: skip
        self._renewals.drop(held)
        self._telling.tell_parked(held.attempts, reason)
        self.parked = reason
        self._parked = WorkParked(self._describe_parked(reason))
        return self._parked

    async def end_step(self, held: Held) -> None:
        """A step is over: the lease is renewed again, or given back where it was the last thing that was under way."""
        self.renew_again(held)
        if self.is_left and not held.taken_over:
            await self._works.give_back(held)

    def renew_again(self, held: Held) -> None:
        """A step is over, and nothing may be awaited."""
        if held.taken_over or self.is_left:
            self._renewals.drop(held)
        else:
            self._renewals.hold(held)

    def _check_known(self) -> None:
        if self.unsure is not None:
            raise OutcomeUnknown(
                f"the end of {self.unsure} of {self._operation} was interrupted, and it is not known whether it is "
                "recorded: this attempt ends, and the next one finds out"
            )
        if self._parked is not None:
            raise self._parked
