"""GET /healthz for a process that serves nothing else: one small answer per connection, on this machine only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

from onefold.errors import ConfigurationError

HOST = "127.0.0.1"

_REQUEST_S_MAX = 5.0
_REQUEST_BYTES_MAX = 16 * 1024
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@asynccontextmanager
async def healthz(port: int, alive: Callable[[], Mapping[str, float]], stale_s: float) -> AsyncIterator[int]:
    """Serve while the block lasts; the port, which the system chooses for 0. Unwell: someone did not turn in time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S_MAX):
                writer.write(await _answered(reader, alive, stale_s))
                await writer.drain()
        except (TimeoutError, OSError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    try:
        server = await asyncio.start_server(serve, HOST, port, limit=_REQUEST_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"--health-port {port} cannot be listened on: {error.strerror or error}") from error
    async with server:
        chosen: int = server.sockets[0].getsockname()[1]
        yield chosen


async def _answered(reader: asyncio.StreamReader, alive: Callable[[], Mapping[str, float]], stale_s: float) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.partition(b"\r\n")[0].decode("ascii").split(" ")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return _response(400, {})
    if path.partition("?")[0] != "/healthz":
        return _response(404, {})
    if method not in ("GET", "HEAD"):
        return _response(405, {})
    turns = {name: round(seconds, 3) for name, seconds in alive().items()}
    return _response(200 if all(seconds <= stale_s for seconds in turns.values()) else 503, turns, method)


def _response(status: int, content: Mapping[str, float], method: str = "GET") -> bytes:
    body = json.dumps(content).encode()
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nconnection: close\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + body
