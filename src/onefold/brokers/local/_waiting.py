"""How much waits at the local broker, for people who look: bounded, whatever waits."""

from __future__ import annotations

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Fetch
from onefold.brokers.local._sql import STATEMENTS


async def count_waiting(dialect: str, *, count_max: int, consumers_max: int) -> dict[str, int]:
    """Messages of each consumer that has subscribed, by its name: of each at most `count_max` are counted."""

    async def work() -> dict[str, int]:
        return dict(await Fetch(STATEMENTS[dialect].count_some(count_max, consumers_max)))

    return await with_connection(work)
