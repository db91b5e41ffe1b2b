"""A GET over loopback with httpx: bare, through our transport, and through httpx's own retries of connections.

The server is a process of its own that answers from a constant. CPU time of this thread is compared, beside the rates:
on two shared cores the wall clock mostly measures the others.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.synchronize import Event
from statistics import median
from typing import Final

import httpx

from benchmarks.client.costs import steps
from onefold import retrying

ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\nContent-Type: application/json\r\n\r\n" + b'{"fine":true}'


@dataclass(slots=True)
class Way:
    """A client, and what each round took, in microseconds per GET."""

    name: str
    client: httpx.Client
    most: float | None = None
    wall_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def ratio(self, bare: Way) -> float:
        return median(own / other for own, other in zip(self.wall_us, bare.wall_us, strict=True))

    def ratio_by_cpu(self, bare: Way) -> float:
        return median(own / other for own, other in zip(self.cpu_us, bare.cpu_us, strict=True))


def measured(gets: int, rounds: int) -> list[Way]:
    """All ways, round by round, in an order that turns. The best burst of several counts."""
    with serving() as url:
        ways = [
            Way("bare", httpx.Client()),
            Way("onefold", httpx.Client(transport=retrying(httpx.HTTPTransport())), most=1.05),
        ]
        for turn in range(rounds):
            shift = turn % len(ways)
            for way in ways[shift:] + ways[:shift]:
                _burst(way.client, url, gets // 10)
                bursts = [_burst(way.client, url, gets) for _ in range(5)]
                way.wall_us.append(min(wall for wall, _ in bursts))
                way.cpu_us.append(min(cpu for _, cpu in bursts))
        for way in ways:
            way.client.close()
    return ways


def added_steps() -> int:
    """How many functions a GET calls through our transport that a bare one does not, Python's and C's."""
    with serving() as url, httpx.Client() as bare, httpx.Client(transport=retrying(httpx.HTTPTransport())) as ours:
        # The fewest of several: what else a process does meanwhile (garbage, a slice that turns) is not the call's.
        through, alone = (min(steps(partial(one.get, url)) for _ in range(5)) for one in (ours, bare))
        return through - alone


def _burst(client: httpx.Client, url: str, gets: int) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.thread_time()
    for _ in range(gets):
        client.get(url)
    return (time.perf_counter() - wall) / gets * 1e6, (time.thread_time() - cpu) / gets * 1e6


@contextmanager
def serving() -> Iterator[str]:
    """The server's address, for as long as the block lasts."""
    context = multiprocessing.get_context("fork")
    ready: Event = context.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = context.Process(target=_serve, args=(listener, ready), daemon=True)
        server.start()
        ready.wait(10)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.kill()
            server.join()


def _serve(listener: socket.socket, ready: Event) -> None:
    ready.set()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        while chunk := connection.recv(65_536):
            received += chunk
            while b"\r\n\r\n" in received:
                _, _, received = received.partition(b"\r\n\r\n")
                connection.sendall(ANSWER)
