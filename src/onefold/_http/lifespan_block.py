"""An ASGI application's lifespan where no server runs it: started before the first request, ended after the last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from onefold._kernel.foreign_cancellations import cancel_until_ended
from onefold.errors import ConfigurationError


@asynccontextmanager
async def run_lifespan(app: Any, state: dict[str, Any]) -> AsyncIterator[None]:
    """For as long as the block lasts. An application without a lifespan, which raises, has none. `state` gets what it
    leaves for its requests. Raises ConfigurationError where its start fails."""
    outgoing: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    incoming: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    application = asyncio.create_task(app(scope, incoming.get, outgoing.put), name="onefold-lifespan")
    try:
        incoming.put_nowait({"type": "lifespan.startup"})
        started = await _next(outgoing, application)
        if started is not None and started["type"] == "lifespan.startup.failed":
            raise ConfigurationError(f"the application did not start: {started.get('message') or 'see its log'}")
        yield
        if started is not None:
            incoming.put_nowait({"type": "lifespan.shutdown"})
            await _next(outgoing, application)
    finally:
        await cancel_until_ended(application)


async def _next(outgoing: asyncio.Queue[MutableMapping[str, Any]], application: asyncio.Task[None]) -> Any:
    """The next message of the application; None: it has ended without one."""
    message = asyncio.ensure_future(outgoing.get())
    await asyncio.wait({message, application}, return_when=asyncio.FIRST_COMPLETED)
    if message.done():
        return message.result()
    message.cancel()
    return None if outgoing.empty() else outgoing.get_nowait()
