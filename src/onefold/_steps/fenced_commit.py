"""COMMIT of what is written for a work: refused where the work was taken over, looked for where its answer was lost."""

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
    """End the transaction with this batch. Whether its connection is to be given back: it is gone where the answer was
    lost. Raises WorkTakenOver, and what `find_lost_commit` does."""
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
    found, asked = await look_until_known(look)
    if found is None:
        raise OutcomeUnknown(f"{lost} and {'it is not decided yet' if asked else 'the store cannot be asked'}")
    if not found:
        raise StoreUnavailable(f"{lost}, and nothing of it was committed; {way_out}") from error
