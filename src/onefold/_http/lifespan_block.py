"""An ASGI application's lifespan where no server runs it: started before the first request, ended after the last."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from onefold.errors import ConfigurationError


@asynccontextmanager
async def run_lifespan(app: Any, state: dict[str, Any]) -> AsyncIterator[None]:
    """For as long as the block lasts. An application without a lifespan, which raises, has none. `state` gets what it
    leaves for its requests. Raises ConfigurationError where its start fails."""
    told: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    asked: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    living = asyncio.create_task(app(scope, asked.get, told.put), name="onefold-lifespan")
    try:
        asked.put_nowait({"type": "lifespan.startup"})
        started = await _next(told, living)
        if started is not None and started["type"] == "lifespan.startup.failed":
            raise ConfigurationError(f"the application did not start: {started.get('message') or 'see its log'}")
        yield
        if started is not None:
            asked.put_nowait({"type": "lifespan.shutdown"})
            await _next(told, living)
    finally:
        living.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await living


async def _next(told: asyncio.Queue[MutableMapping[str, Any]], living: asyncio.Task[None]) -> Any:
    """What the application says next; None: it has ended without a word."""
    saying = asyncio.ensure_future(told.get())
    await asyncio.wait({saying, living}, return_when=asyncio.FIRST_COMPLETED)
    if saying.done():
        return saying.result()
    saying.cancel()
    return None if told.empty() else told.get_nowait()
