"""Asking again while the first answer is late: a second attempt of what only reads, beside the first.

It is paid for like a retry, from the same budget and before it is made: a host that is slow because it has too much to
do is not given twice as much. The first good answer counts, and the other attempt is broken off; where the second one
was worth it, its token is given back. Where neither is good, the outcome of the first counts.

Invariant: of the answers that came, one is returned, or none where the caller breaks off, and every other one is freed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from onefold._kernel.executors import in_background
from onefold._policy.attempts import HostHealth

T = TypeVar("T")

_TOKENS: Final = 1


async def hedge(
    send: Callable[[], Coroutine[Any, Any, T]],
    after_s: float,
    host: HostHealth,
    is_good: Callable[[T], bool],
    discard: Callable[[T], Any],
) -> T:
    """The answer of the first attempt, or of a second one that begins after so many seconds and is good. An answer
    that is not returned goes to `discard`, a plain function or a coroutine function, which frees what it holds."""
    first = _start(send)
    second: asyncio.Task[T] | None = None
    chosen: asyncio.Task[T] | None = None
    try:
        done, _ = await asyncio.wait({first}, timeout=after_s)
        if not done and _may_hedge(host):
            second = _start(send)
            try:
                chosen = await _first_good(first, second, host, is_good)
            finally:
                if host.limiter is not None:
                    host.limiter.leave(monotonic(), None)  # it says nothing: the other one was measured
        else:
            if not done:
                await asyncio.wait({first})
            chosen = first
        return chosen.result()
    finally:
        for task in (first, second):
            if task is not None and task is not chosen:
                task.cancel()
                # Also of one that was done already, as when both answer in the same turn of the loop.
                task.add_done_callback(partial(_free, discard, chosen))


async def _first_good(
    first: asyncio.Task[T], second: asyncio.Task[T], host: HostHealth, is_good: Callable[[T], bool]
) -> asyncio.Task[T]:
    running = {first, second}
    while running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in (first, second):
            if task in done and not task.cancelled() and task.exception() is None and is_good(task.result()):
                if task is second and host.budget is not None:
                    host.budget.give_back(_TOKENS, monotonic())
                return task
    return first


def _free(discard: Callable[[T], Any], chosen: asyncio.Task[T] | None, task: asyncio.Task[T]) -> None:
    """In the background: the caller has its answer, or has gone."""
    if task.cancelled() or task.exception() is not None:
        return
    if (
        chosen is not None
        and not chosen.cancelled()
        and chosen.exception() is None
        and chosen.result() is task.result()
    ):
        return  # both got the same one, as from a cache
    if inspect.iscoroutine(freeing := discard(task.result())):
        in_background(freeing)


def _may_hedge(host: HostHealth) -> bool:
    """Room for one more, and its token: taken here."""
    if not host.is_closed or (host.limiter is not None and not host.limiter.enter()):
        return False
    if host.budget is None or host.budget.take(monotonic(), _TOKENS):
        return True
    if host.limiter is not None:
        host.limiter.leave(monotonic(), None)
    return False


def _start(send: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
    task = asyncio.get_running_loop().create_task(send())
    task.add_done_callback(_retrieve_error)
    return task


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    """Mark the error of the attempt that lost as seen: asyncio would log it."""
    if not task.cancelled():
        task.exception()
