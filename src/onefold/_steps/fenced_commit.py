"""Commits what is written for a work: refuses it if the work was taken over, and looks for a COMMIT whose answer was
lost."""

from __future__ import annotations

from collections.abc import Callable

from onefold._kernel.effects import Batch, BatchItem, Discard, Flow
from onefold._kernel.handler_errors import rethrow
from onefold._kernel.lost_commits import look_until_known
from onefold._steps.model import Held
from onefold._steps.works import note_taken_over
from onefold.errors import ConnectionLost, OutcomeUnknown, RequiredValueMissing, StoreUnavailable

#: Whether a COMMIT took place. None: that is not decided yet.
Look = Callable[[], Flow[bool | None]]


async def commit_fenced(held: Held, batch: tuple[BatchItem, ...], look: Look, *, lost: str, way_out: str) -> bool:
    """End the transaction with this batch. True: the connection is to be given back; False: it was lost with the
    answer. Raises WorkTakenOver, and what `find_lost_commit` does."""
    try:
        await Batch(batch)
    except ConnectionLost as error:
        await Discard()
        await find_lost_commit(look, error, lost=lost, way_out=way_out)
        return False
    except RequiredValueMissing as error:
        await Discard()
        raise note_taken_over(held) from error
    except Exception as error:
        await Discard()
        rethrow(error)
    return True


async def find_lost_commit(look: Look, error: ConnectionLost, *, lost: str, way_out: str) -> None:
    """COMMIT was sent and its answer `lost`. Returns where it took place. Raises StoreUnavailable where it did not,
    with the `way_out`; OutcomeUnknown."""
    is_committed, could_look = await look_until_known(look)
    if is_committed is None:
        raise OutcomeUnknown(f"{lost} and {'it is not decided yet' if could_look else 'the store cannot be read'}")
    if not is_committed:
        raise StoreUnavailable(f"{lost}, and nothing of it was committed; {way_out}") from error
