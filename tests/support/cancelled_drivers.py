"""A driver one of whose futures is cancelled elsewhere: what awaits it gets a CancelledError that is not its own."""

from __future__ import annotations

import asyncio
from typing import Any


class CancelledFirst:
    """A database whose first `acquire` is cancelled elsewhere; later ones are passed on."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.dialect = database.dialect
        self.acquired = 0
        """How often a connection was asked for."""

    async def acquire(self) -> Any:
        self.acquired += 1
        if self.acquired == 1:
            raise asyncio.CancelledError
        return await self._database.acquire()

    async def close(self) -> None: ...
