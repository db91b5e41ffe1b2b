"""A proxy before Postgres that counts round trips as the server answers them.

Every cycle of the protocol, however many statements it carries, ends with one ReadyForQuery; a driver cannot take
one without waiting for the wire, so this number is what a request costs in round trips, whatever the driver calls it.
Every statement, BEGIN and COMMIT among them, is answered with one CommandComplete. The bytes that go up tell whether
statements are prepared: the text of one that is parsed anew is longer than all its values.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.load import HOST

_CHUNK_BYTES_MAX: Final = 65_536
_READY_FOR_QUERY: Final = ord("Z")
_COMMAND_COMPLETE: Final = ord("C")
_COMMITTED: Final = b"COMMIT\0"


class Wire:
    """What went over all connections through the proxy."""

    def __init__(self) -> None:
        self.cycles = 0
        self.statements = 0
        self.commits = 0
        self.bytes_sent = 0


@asynccontextmanager
async def counting_proxy(host: str, port: int) -> AsyncIterator[tuple[Wire, int]]:
    """The counts, and the port to connect to; without TLS, or there would be nothing to read."""
    wire = Wire()
    links: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, port)
        writers.extend((writer, up_writer))
        for pump in (_pass_up(wire, reader, up_writer), _count_down(wire, up_reader, writer)):
            task = asyncio.create_task(pump)
            links.add(task)
            task.add_done_callback(links.discard)

    server = await asyncio.start_server(accept, HOST, 0)
    try:
        yield wire, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in links:
            task.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        for writer in writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)


async def _pass_up(wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES_MAX):
        wire.bytes_sent += len(chunk)
        writer.write(chunk)
        await writer.drain()
    writer.close()


async def _count_down(wire: Wire, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readexactly(5)  # a type, and a length that counts itself
            kind, length = struct.unpack("!Bi", head)
            body = await reader.readexactly(length - 4)
            # Counted before it is sent: whoever has the answer finds it counted.
            wire.cycles += kind == _READY_FOR_QUERY
            wire.statements += kind == _COMMAND_COMPLETE
            wire.commits += kind == _COMMAND_COMPLETE and body == _COMMITTED
            writer.write(head + body)
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()
