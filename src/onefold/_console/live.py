"""Live updates: a stream of fragments of a page, each sent when it has changed (server-sent events).

A stream ends when its operator's session does, when the browser leaves, and after STREAM_S by itself: the browser comes
back. A server that shuts down does not notify its open streams and waits for them; uvicorn without a limit. So one tab
with the overview holds up the end of its application for STREAM_S, which is less than the 30 s that Kubernetes and
gunicorn give. There are at most STREAMS_MAX at once; what they show is made once for all that look at the same thing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from onefold._console.sections import Visit
from onefold._kernel.clock import monotonic_s
from onefold.errors import OnefoldError

STREAMS_MAX: Final = 20
EVERY_S: Final = 5.0
STREAM_S: Final = 15.0

Fragments: TypeAlias = Mapping[str, str]
"""HTML, by the id of the element that it is put into."""
Make: TypeAlias = Callable[[], Awaitable[Fragments]]

log = logging.getLogger("onefold.console")


class LiveStreams:
    """The streams of one console."""

    def __init__(self, *, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self.open = 0
        self._cache: dict[str, tuple[float, Fragments]] = {}
        self._making = asyncio.Lock()

    def answer(self, visit: Visit, make: Make) -> Response:
        """The stream of what this address shows. `make` must not show what only this operator may see."""
        if self.open >= STREAMS_MAX:
            raise HTTPException(503, f"{STREAMS_MAX} pages are updated live already. Reload this page instead.")
        headers = {"X-Accel-Buffering": "no"}  # proxies that would keep it until it is long enough
        return _LiveResponse(self, self._send(visit, make), media_type="text/event-stream", headers=headers)

    async def _send(self, visit: Visit, make: Make) -> AsyncIterator[str]:
        ends_at = monotonic_s() + STREAM_S
        sent: dict[str, str] = {}
        yield f"retry: {int(self._every_s * 1000)}\n\n"
        while True:
            if await visit.is_over():
                yield "event: end\ndata:\n\n"
                return
            changed = await self._find_changed(visit, make, sent)
            sent.update(changed)
            # A comment if nothing has changed: only writing detects a closed connection.
            yield "".join(map(write_fragment, changed, changed.values())) or ": nothing new\n\n"
            if monotonic_s() + self._every_s >= ends_at:
                return  # the browser waits as long as we would, and comes back
            await asyncio.sleep(self._every_s)

    async def _find_changed(self, visit: Visit, make: Make, sent: Mapping[str, str]) -> Fragments:
        try:
            fragments = await self._make_once(str(visit.request.url), make)
        except OnefoldError as error:  # the page stays as it is, until the database is back
            log.warning("console: live updates of %s wait: %s", visit.request.url.path, error)
            return {}
        return {name: html for name, html in fragments.items() if sent.get(name) != html}

    async def _make_once(self, address: str, make: Make) -> Fragments:
        async with self._making:
            now = monotonic_s()
            self._cache = {key: entry for key, entry in self._cache.items() if now - entry[0] < self._every_s / 2}
            if address not in self._cache:
                self._cache[address] = (now, await make())
            return self._cache[address][1]


class _LiveResponse(StreamingResponse):
    """A stream that is counted right after the limit is checked: no task runs in between, so the limit holds."""

    def __init__(self, streams: LiveStreams, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.open += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


def write_fragment(name: str, html: str) -> str:
    """An event: the name of the element, and its new content."""
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"event: fragment\ndata: {name}\n{lines}\n"
