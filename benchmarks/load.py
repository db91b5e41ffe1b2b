"""A closed loop of callers on keep-alive connections: each sends, waits for the whole answer, sends again.

It must never be the bottleneck, so it knows of HTTP only what these servers say: a status, a Content-Length, a body.
Invariant: every request that was sent is answered and counted, so that rows in a database can be held against it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, cast

import uvloop

HOST: Final = "127.0.0.1"
BODY: Final = b'{"account":"acct_4711","amount":1250}'
CREATED: Final = b"201"
ANSWER_S_MAX: Final = 30.0

_BEFORE_KEY: Final = (
    b"POST /payments HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\nX-Account: acct_4711\r\n"
    b'Content-Type: application/json\r\nContent-Length: %d\r\nIdempotency-Key: "' % len(BODY)
)
_AFTER_KEY: Final = b'"\r\n\r\n' + BODY
_LENGTH: Final = b"content-length: "
_REPLAYED: Final = b"idempotent-replayed: true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one round of load saw. `answered` counts every answer, `measured` those after the warm-up."""

    answered: int
    created: int
    replayed: int
    measured: int
    seconds: float
    p50_ms: float
    p99_ms: float
    busy: float
    """The share of one core this process used: near 1 it would have measured itself."""

    @property
    def rate(self) -> float:
        return self.measured / self.seconds


class Tally:
    """What all callers of a round share."""

    def __init__(self, *, callers: int, warmup_s: float, seconds: float) -> None:
        self.start = time.perf_counter()
        self.from_s = self.start + warmup_s
        self.until_s = self.from_s + seconds
        self.answered = self.created = self.replayed = 0
        self.latencies: list[float] = []
        self.calling = callers
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave(self, error: Exception | None = None) -> None:
        self.calling -= 1
        if self.over.done():
            return
        if error is not None:
            self.over.set_exception(error)
        elif self.calling == 0:
            self.over.set_result(None)


class Caller(asyncio.Protocol):
    """One connection, and one request at a time on it."""

    def __init__(self, tally: Tally, keys: Iterator[bytes]) -> None:
        self._tally = tally
        self._keys = keys
        self._left = False
        self._received = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own does not say so
        self._send()

    def data_received(self, data: bytes) -> None:
        received = self._received = self._received + data if self._received else data
        head_end = received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        at = received.find(_LENGTH) + len(_LENGTH)
        if len(received) < head_end + 4 + int(received[at : received.index(b"\r", at)]):
            return
        tally, now = self._tally, time.perf_counter()
        tally.answered += 1
        tally.created += received[9:12] == CREATED
        tally.replayed += _REPLAYED in received
        if tally.from_s <= now < tally.until_s:
            tally.latencies.append(now - self._sent_at)
        self._received = b""
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._left:
            self._left = True
            self._tally.leave(error or ConnectionError("the server closed a connection"))

    def _send(self) -> None:
        key = next(self._keys, None) if time.perf_counter() < self._tally.until_s else None
        if key is None:
            self._left = True
            self._tally.leave()
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(_BEFORE_KEY + key + _AFTER_KEY)


def keys_of(caller: int, *, seed: str, count: int) -> Iterator[bytes]:
    """Keys no other caller has: `count` of them over and over, or new ones for ever when it is 0."""
    if count:
        return itertools.cycle([b"%s-%04x-%012x" % (seed.encode(), caller, n) for n in range(count)])
    return (b"%s-%04x-%012x" % (seed.encode(), caller, n) for n in itertools.count())


async def load(
    port: int, *, connections: int, seconds: float, warmup_s: float, seed: str, repeated: int, once: bool = False
) -> Load:
    """Run one round. With `once` each repeated key is sent once and the round ends there."""
    tally = Tally(callers=connections, warmup_s=warmup_s, seconds=seconds)
    busy_from = time.process_time()
    for caller in range(connections):
        keys = keys_of(caller, seed=seed, count=repeated)
        if once:
            keys = itertools.islice(keys, repeated)
        await asyncio.get_running_loop().create_connection(functools.partial(Caller, tally, keys), HOST, port)
    await asyncio.wait_for(tally.over, warmup_s + seconds + ANSWER_S_MAX)
    took_s = time.perf_counter() - tally.start
    latencies = sorted(tally.latencies) or [0.0]
    return Load(
        answered=tally.answered,
        created=tally.created,
        replayed=tally.replayed,
        measured=len(tally.latencies),
        seconds=seconds,
        p50_ms=latencies[len(latencies) // 2] * 1000,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1000,
        busy=(time.process_time() - busy_from) / took_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--warmup", type=float, default=0.3)
    parser.add_argument("--seed", help="what the keys begin with; random unless told")
    parser.add_argument("--repeated", type=int, default=0, help="keys per connection; 0: a new one each time")
    parser.add_argument("--once", action="store_true", help="send every repeated key once, then end")
    told = parser.parse_args()
    seed = told.seed or f"{secrets.token_hex(4)}-{secrets.token_hex(2)}-4{secrets.token_hex(1)}0"
    seen = uvloop.run(
        load(
            told.port,
            connections=told.connections,
            seconds=told.seconds,
            warmup_s=told.warmup,
            seed=seed,
            repeated=told.repeated,
            once=told.once,
        )
    )
    print(json.dumps(asdict(seen)))


if __name__ == "__main__":
    main()
