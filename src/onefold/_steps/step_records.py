"""Commits the records of steps, and finds out whether a COMMIT whose answer was lost took place.

Failure windows. The record of a phase commits with its rows, or not at all. The record of a call is tried for as long
as the lease lasts: what is not recorded happens again. While it is not known whether a record is committed, the guard
has the step as `unsure`, and lets no other begin.
"""

from __future__ import annotations

import functools
from itertools import chain, repeat
from typing import Final

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import (
    Acquire,
    Batch,
    BatchItem,
    Boundary,
    Discard,
    Fetch,
    Now,
    Release,
    ReleaseCommitted,
    Sleep,
    Statement,
)
from onefold._steps.attempt_guard import AttemptGuard
from onefold._steps.fenced_commit import commit_fenced
from onefold._steps.model import Held, RecordedStep
from onefold._steps.works import Works, note_taken_over, read_steps
from onefold.errors import OutcomeUnknown, RequiredValueMissing, StoreBusy, StoreUnavailable, WorkTakenOver

#: Between the attempts to record a call that was made, for as long as its lease lasts; the last one again and again.
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)


class StepRecords:
    """The records of one attempt at a work."""

    def __init__(self, works: Works, operation: str, guard: AttemptGuard) -> None:
        self._works = works
        self._operation = operation
        self._guard = guard

    async def commit_phase(self, held: Held, record: RecordedStep, events: tuple[Statement, ...]) -> None:
        """In the transaction of the phase, which it ends. Raises WorkTakenOver, OutcomeUnknown, StoreUnavailable."""
        sql = self._works.sql
        batch = (*sql.proof, *events, sql.renew(held), sql.record(held, record), Boundary.COMMIT)
        look = functools.partial(with_connection, functools.partial(self._find, held, record.position))
        lost = f"the connection of phase {record.name!r} of {self._operation} was lost during COMMIT"
        try:
            is_answered = await commit_fenced(held, batch, look, lost=lost, way_out="a retry runs it again")
        except (OutcomeUnknown, WorkTakenOver):
            raise
        except Exception:
            self._guard.unsure = None
            raise
        if is_answered:
            await ReleaseCommitted()

    async def commit_call(self, held: Held, record: RecordedStep) -> None:
        """In a transaction of its own. Raises WorkTakenOver, StoreUnavailable."""
        sql, until = self._works.sql, await Now() + held.lease_s
        self._guard.unsure = f"call {record.name!r}"
        batch: tuple[BatchItem, ...] = (Boundary.BEGIN, sql.renew(held), sql.record(held, record), Boundary.COMMIT)
        for pause_s in chain(_PAUSES_S, repeat(_PAUSES_S[-1])):
            try:
                await Acquire()
                await Batch(batch)
            except RequiredValueMissing as error:
                await Discard()
                self._guard.unsure = None
                raise note_taken_over(held) from error
            except (StoreUnavailable, StoreBusy) as error:
                await Discard()
                if held.taken_over or await Now() + pause_s >= until:
                    raise StoreUnavailable(
                        f"{record.state} of call {record.name!r} of {self._operation} could not be recorded: {error}"
                    ) from error
                await Sleep(pause_s)
            except Exception:
                await Discard()
                self._guard.unsure = None
                raise
            else:
                break
        self._guard.unsure = None
        await Release()

    async def _find(self, held: Held, position: int) -> bool | None:
        """Whether the step is recorded. None: its transaction still has the row."""
        await Batch((Boundary.BEGIN,))
        rows = await Fetch(self._works.sql.look(held))
        steps = read_steps(await Fetch(self._works.sql.steps(held.digest)))
        await Batch((Boundary.ROLLBACK,))
        if not rows:
            return None
        if rows[0][0] != held.fence:
            raise note_taken_over(held)
        return any(step.position == position for step in steps)
