"""Looking for a COMMIT whose answer was lost: on fresh connections, for a bounded time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from onefold._kernel.effects import Flow, Now, Sleep
from onefold.errors import StoreError

T = TypeVar("T")

#: A lost COMMIT is looked for after these pauses, because the server may still be working on it; and not for longer in
#: all, because a server that cannot be reached makes every look wait.
LOOKUP_PAUSES_S: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5)
LOOKUP_S_MAX: Final = 5.0


async def look_until_known(look: Callable[[], Flow[T | None]]) -> tuple[T | None, bool]:
    """What the look finds, None while that is not decided; and whether the store has answered at all."""
    answered = False
    give_up_at = await Now() + LOOKUP_S_MAX
    for pause_s in LOOKUP_PAUSES_S:
        await Sleep(pause_s)
        if await Now() >= give_up_at:
            break
        try:
            found = await look()
        except StoreError:
            continue
        answered = True
        if found is not None:
            return found, True
    return None, answered
