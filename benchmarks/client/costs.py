"""A function that returns at once, with retry, budget, breaker and deadline around it; and the same by other libraries.

Each contestant runs once per round, in an order that turns, beside the bare function of the same round. A sample is the
best of several short bursts: what is being measured takes a microsecond, and any interruption takes longer.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

import pyresilience
import stamina
import tenacity

from onefold import Retrying

BURSTS: Final = 15
BARE: Final = "bare"


@dataclass(slots=True)
class Contestant:
    """A way to call the function, its samples in microseconds, and how much more than bare it may cost."""

    name: str
    call: Callable[[], Any]
    most_us: float | None = None
    samples_us: list[float] = field(default_factory=list)

    def over_us(self, bare: Contestant) -> float:
        """What it costs above the bare function: the median over the rounds."""
        return median(own - other for own, other in zip(self.samples_us, bare.samples_us, strict=True))


def function() -> int:
    """What is called, on a thread."""
    return 1


async def coroutine_function() -> int:
    """The same, on a loop."""
    return 1


def contestants(function: Callable[[], Any], most_us: float) -> list[Contestant]:
    """The function bare, by us, and by others, with all of retry, budget and breaker that they have."""
    resilient = pyresilience.resilient(
        retry=pyresilience.RetryConfig(max_attempts=3, retry_on=(OSError,)),
        circuit_breaker=pyresilience.CircuitBreakerConfig(),
    )
    return [
        Contestant(BARE, function),
        Contestant("onefold", Retrying().calls("bench", on=OSError)(function), most_us),
        Contestant("pyresilience, retry and breaker", resilient(function)),
        Contestant("stamina", stamina.retry(on=OSError)(function)),
        Contestant("tenacity", tenacity.retry(retry=tenacity.retry_if_exception_type(OSError))(function)),
    ]


def measured(calls: int, rounds: int) -> dict[str, list[Contestant]]:
    """Both colours."""
    sync, loops = contestants(function, 2.0), contestants(coroutine_function, 3.0)
    for turn in range(rounds):
        for field_ in (sync, loops):
            shift = turn % len(field_)
            for contestant in field_[shift:] + field_[:shift]:
                best_us = (
                    _on_a_loop(contestant.call, calls) if field_ is loops else _on_a_thread(contestant.call, calls)
                )
                contestant.samples_us.append(best_us)
    return {"on a thread": sync, "on a loop": loops}


def _on_a_thread(call: Callable[[], Any], calls: int) -> float:
    best = float("inf")
    for _ in range(BURSTS):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, time.perf_counter() - began)
    return best / calls * 1e6


def _on_a_loop(call: Callable[[], Awaitable[Any]], calls: int) -> float:
    async def burst() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            await call()
        return time.perf_counter() - began

    async def bursts() -> float:
        return min([await burst() for _ in range(BURSTS)])

    return asyncio.run(bursts()) / calls * 1e6


def steps(call: Callable[[], Any]) -> int:
    """How many functions one call calls, Python's and C's: the same on every machine, busy or not."""
    for _ in range(3):
        call()  # slices turn, caches fill
    counted = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return counted - 1  # the call that ends the counting


def sync_steps() -> int:
    """What onefold's calls on a thread come to."""
    return steps(Retrying().calls("bench", on=OSError)(function))
