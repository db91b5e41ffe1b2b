"""An executor for a flow on a thread, over the connection of a request that runs on an event loop.

A plain `def` endpoint has a thread of its own, while its request is a task. What its flows ask of the database is done
on the loop, which has the connection; what they call is called on the thread, where the endpoint runs.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from onefold._kernel.clock import monotonic_s
from onefold._kernel.effects import BatchItem, HandlerStatement, NamedRows, Row, Statement
from onefold._kernel.executors import TaskExecutor

T = TypeVar("T")


class LoopBridge:
    """Implements `Executor`."""

    __slots__ = ("_executor", "_loop")

    def __init__(self, executor: TaskExecutor[Any], loop: asyncio.AbstractEventLoop) -> None:
        self._executor = executor
        self._loop = loop

    def batch(self, items: Sequence[BatchItem]) -> int:
        return self._on_loop(self._executor.batch(items))

    def fetch(self, statement: Statement) -> list[Row]:
        return self._on_loop(self._executor.fetch(statement))

    def query(self, statement: HandlerStatement) -> NamedRows:
        return self._on_loop(self._executor.query(statement))

    def acquire(self) -> None:
        self._on_loop(self._executor.acquire())

    def release(self) -> None:
        self._on_loop(self._executor.release())

    def release_committed(self) -> None:
        self._on_loop(self._executor.release_committed())

    def discard(self) -> None:
        self._on_loop(self._executor.discard())

    def sleep(self, seconds: float) -> None:
        self._on_loop(self._executor.sleep(seconds))

    def now(self) -> float:
        return monotonic_s()

    def call(self, function: Callable[[], Any]) -> Any:
        result = function()
        return self._on_loop(_await(result)) if inspect.isawaitable(result) else result

    def publish(self, messages: Any) -> Any:
        return self._on_loop(self._executor.publish(messages))

    def abandon(self) -> None:
        self._loop.call_soon_threadsafe(self._executor.abandon)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _await(given: Awaitable[T]) -> T:
    return await given
