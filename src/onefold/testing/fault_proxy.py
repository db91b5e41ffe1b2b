"""A TCP proxy that refuses, resets, holds, delays and cuts on command: the network's faults, in user space.

Invariant: bytes are passed on once, in order and unchanged; what a fault takes away is the tail of a
connection, never its middle. TCP promises that much over the worst of networks, so what breaks behind this
proxy can break in production.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self
from urllib.parse import parse_qs, urlsplit

from onefold._kernel.redaction import redact
from onefold.errors import ConfigurationError, ProgrammerError

__all__ = ["Direction", "FaultProxy", "Mode", "Traffic"]

HOST: Final = "127.0.0.1"
Mode = Literal["pass", "refuse", "reset", "black_hole"]
Direction = Literal["up", "down"]

_CHUNK_BYTES_MAX: Final = 65_536
_CONTROL_S_MAX: Final = 10.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER, on, for 0 seconds


def reserve_port() -> socket.socket:
    """A socket bound to a free loopback port, not listening: it keeps the port for a SO_REUSEADDR listener.

    While it is open no other process is given the port, connecting to it is refused unless a server listens, and a
    client that retries cannot by accident connect to itself, as it can on a free ephemeral port.
    """
    placeholder = socket.socket()
    placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    placeholder.bind((HOST, 0))
    return placeholder


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What went through so far: `connections`, and bytes each way (`bytes_up` to the server, `bytes_down`). A run whose
    `cuts` stay 0 has not tested what it meant to test."""

    connections: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    cuts: int = 0


class FaultProxy:
    """Stands before a server, on a port of its own: `with FaultProxy(host, port) as proxy: proxy.dsn(dsn)`.

    It runs in a thread of its own, and every call returns when its effect is there. "up" is from the client
    to the server, "down" the way back. The modes:

    - `pass`: everything goes through;
    - `refuse`: new connections are refused, those there are go on;
    - `reset`: those there are get a RST, and so does every new one;
    - `black_hole`: connections are accepted, and nothing moves, not even the news that a peer is gone. What
      was sent meanwhile arrives when the mode ends, as it does after a real partition.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._mode: Mode = "pass"
        self._latency_s = 0.0
        self._traffic = Traffic()
        self._cut: tuple[Direction, int] | None = None
        self._links: dict[asyncio.Task[None], _ProxiedConnection] = {}
        self._accepting: asyncio.Task[None] | None = None
        self._rim: _Rim | None = None

    def start(self) -> Self:
        """Listen, in mode `pass`."""
        if self._rim is not None:
            raise ProgrammerError(f"the proxy on port {self.address[1]} is started; call stop() first")
        self._rim = _Rim()
        self._rim.thread.start()
        self.heal()
        return self

    def stop(self) -> None:
        """Reset what is left and end the thread. Does nothing when there is nothing to stop."""
        if (rim := self._rim) is not None:
            rim.perform(self._close())
            rim.loop.call_soon_threadsafe(rim.loop.stop)
            rim.thread.join()
            rim.loop.close()
            rim.placeholder.close()
            self._rim = None

    def switch(self, mode: Mode) -> None:
        """Enter a mode; see the class for what each does to connections old and new."""
        self._running.perform(self._switch(mode))

    def cut_after(self, direction: Direction, count: int) -> None:
        """Cut one connection, once, when it has passed `count` more bytes that way and the next one comes.

        It is the first to get there, of those open now (counted from now) and those to come (counted from
        their start). The receiver gets exactly these bytes and then the end; the sender gets a RST. So
        `cut_after("down", 0)` lets a COMMIT be executed and loses its answer. A new cut replaces one that has
        not been made yet.
        """
        if direction not in ("up", "down") or count < 0:
            raise ConfigurationError(f"cut_after({direction!r}, {count}): give 'up' or 'down', and 0 or more")
        self._running.perform(self._arm((direction, count)))

    def heal(self) -> None:
        """Mode `pass`, no latency, no cut to come."""
        self.latency_s = 0.0
        self._running.perform(self._arm(None))
        self.switch("pass")

    @property
    def mode(self) -> Mode:
        """The one that it is in."""
        return self._mode

    @property
    def latency_s(self) -> float:
        """How long each chunk is held back, each way; one at a time, so bulk gets slow."""
        return self._latency_s

    @latency_s.setter
    def latency_s(self, seconds: float) -> None:
        if seconds < 0:
            raise ConfigurationError(f"latency_s={seconds}: give 0 or more")
        self._latency_s = seconds

    @property
    def traffic(self) -> Traffic:
        """What went through so far."""
        return self._traffic

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect to: host and port."""
        return HOST, int(self._running.placeholder.getsockname()[1])

    def dsn(self, dsn: str) -> str:
        """The same DSN, by way of this proxy. It must be a URL of the server that the proxy stands before."""
        parts = urlsplit(dsn)
        try:
            port = parts.port
        except ValueError:  # several hosts in one URL
            port = -1
        elsewhere = {"host", "hostaddr", "port"} & parse_qs(parts.query).keys()
        if not parts.hostname or elsewhere or port not in (None, self._target[1]):
            raise ConfigurationError(
                f"dsn={redact(dsn)!r}: this proxy stands before {self._target[0]}:{self._target[1]}; "
                "give a URL that names this one server before the path"
            )
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{HOST}:{self.address[1]}").geturl()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _running(self) -> _Rim:
        if self._rim is None:
            raise ProgrammerError("this proxy is not started; call start(), or use it in a `with`")
        return self._rim

    # --- from here on in the proxy's own thread ---

    async def _switch(self, mode: Mode) -> None:
        rim = self._running
        self._mode = mode
        if mode == "black_hole":
            rim.through.clear()
        else:
            rim.through.set()
        if mode == "refuse":
            await _cancel(self._accepting)
            self._accepting = None
        elif self._accepting is None:
            self._accepting = asyncio.create_task(self._accept(_listener(self.address)))
        if mode == "reset":
            await _cancel(*self._links)

    async def _close(self) -> None:
        await _cancel(self._accepting)
        await _cancel(*self._links)
        self._accepting = None

    async def _arm(self, cut: tuple[Direction, int] | None) -> None:
        self._cut = cut
        for link in self._links.values():
            link.left = dict([cut] if cut else ())

    async def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                client, _ = await asyncio.get_running_loop().sock_accept(listener)
                self._traffic = replace(self._traffic, connections=self._traffic.connections + 1)
                link = _ProxiedConnection(client, dict([self._cut] if self._cut else ()))
                if self._mode == "reset":
                    link.close()
                else:
                    task = asyncio.create_task(self._carry(link))
                    self._links[task] = link
                    # Not in the task: one that is cancelled before its first step runs nothing of its own.
                    task.add_done_callback(lambda done: self._links.pop(done).close())

    async def _carry(self, link: _ProxiedConnection) -> None:
        try:
            await self._running.through.wait()
            await asyncio.get_running_loop().sock_connect(link.server, self._target)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump("up", link, link.client, link.server))
                pumps.create_task(self._pump("down", link, link.server, link.client))
            link.spared = {link.client, link.server}
        except* (OSError, _Cut):
            pass  # One end is gone, or never was there. Closing the link will tell the other.

    async def _pump(
        self, direction: Direction, link: _ProxiedConnection, source: socket.socket, target: socket.socket
    ) -> None:
        loop, through = asyncio.get_running_loop(), self._running.through
        while True:
            await through.wait()
            try:
                chunk = await loop.sock_recv(source, _CHUNK_BYTES_MAX)
            except OSError:
                await through.wait()
                raise
            if self._latency_s:
                await asyncio.sleep(self._latency_s)
            await through.wait()
            passed, cut = self._allot(direction, link, chunk)
            await loop.sock_sendall(target, passed)
            if cut:
                link.spared = {target}
                raise _Cut
            if not chunk:
                target.shutdown(socket.SHUT_WR)
                return

    def _allot(self, direction: Direction, link: _ProxiedConnection, chunk: bytes) -> tuple[bytes, bool]:
        """How much of the chunk may pass, and whether the connection is cut after that."""
        left = link.left.get(direction, len(chunk))
        passed, cut = chunk[:left], left < len(chunk)
        if direction in link.left:
            link.left[direction] -= len(passed)
        traffic = self._traffic
        if cut:
            self._cut = None
            for other in self._links.values():
                other.left = {}
            traffic = replace(traffic, cuts=traffic.cuts + 1)
        # Counted before it is sent: the receiver of a byte finds it counted.
        if direction == "up":
            self._traffic = replace(traffic, bytes_up=traffic.bytes_up + len(passed))
        else:
            self._traffic = replace(traffic, bytes_down=traffic.bytes_down + len(passed))
        return passed, cut


class _Cut(Exception):
    """Ends both pumps of a connection."""


@dataclass(slots=True, eq=False)
class _ProxiedConnection:
    """One connection through the proxy: both its ends, and how many bytes may still pass before it is cut."""

    client: socket.socket
    left: dict[Direction, int]
    server: socket.socket = field(default_factory=socket.socket)
    spared: set[socket.socket] = field(default_factory=set)

    def __post_init__(self) -> None:
        for end in (self.client, self.server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """With a RST, except for the ends that are spared it."""
        for end in (self.client, self.server):
            if end not in self.spared:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()


class _Rim:
    """The loop, its thread, the gate that a black hole shuts, and the port."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="fault-proxy", daemon=True)
        self.through = asyncio.Event()
        self.placeholder = reserve_port()

    def perform(self, action: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(action, self.loop).result(_CONTROL_S_MAX)


def _listener(address: tuple[str, int]) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(128)
    listener.setblocking(False)
    return listener


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    doomed = [task for task in tasks if task is not None]
    for task in doomed:
        task.cancel()
    await asyncio.gather(*doomed, return_exceptions=True)
