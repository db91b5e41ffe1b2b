"""What a handler does in a scenario, and what it has at hand: written once, for both colours."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from onefold._kernel.transaction import Transaction
from tests.contract.rows import ASGI, BackendName
from tests.support.patience import PATIENCE_S

T = TypeVar("T")

JSON = (("content-type", "application/json"),)


class RequestGuard:
    """Where a handler stops until the test lets it on."""

    def __init__(self) -> None:
        self._reached: Future[None] = Future()
        self._opened: Future[None] = Future()

    def await_arrival(self) -> None:
        self._reached.result(PATIENCE_S)

    def open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def pass_through(self) -> None:
        self._arrive()
        self._opened.result(PATIENCE_S)

    async def pass_through_async(self) -> None:
        self._arrive()
        # Shielded: a handler that is cancelled must not open the gate for others.
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._opened)), PATIENCE_S)

    def _arrive(self) -> None:
        if not self._reached.done():
            self._reached.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a handler does: write its row, act, stop at a gate, raise or answer."""

    status: int = 201
    headers: tuple[tuple[str, str], ...] = JSON
    body: bytes = b'{"paid": true}'
    chunks: tuple[bytes, ...] = ()
    writes: bool = True
    acts: Callable[[Desk], Awaitable[None]] | None = None
    guard: RequestGuard | None = None
    error: Exception | None = None
    breaks: Exception | None = None
    """Raised in the middle of the answer: after all its parts, when more was promised."""

    rescued: Plan | None = None
    """What the application's exception handler answers to the error, where a framework has such a thing."""

    follows: Callable[[], object] | None = None
    """What a framework does after the answer: a background task, or a callback for when it is closed."""

    def parts(self) -> tuple[bytes, ...]:
        return self.chunks or (self.body,)


@dataclass(frozen=True, slots=True)
class Desk:
    """What a handler works with. Its methods are awaited in both colours; on a thread they never suspend."""

    backend: BackendName
    tx: Transaction[Any] | None

    @property
    def connection(self) -> Any:
        assert self.tx is not None, "this route has no transaction"
        return self.tx.connection

    async def execute(self, sql: str, *values: object) -> None:
        """One statement; a value is written `:1`."""
        connection = self.connection
        mark, arguments = {
            "asgi-sqlite": ("?", (values,)),
            "asgi-postgres": ("$1", values),
            "wsgi-sqlite": ("?", (values,)),
            "wsgi-postgres": ("%s", (values,)),
        }[self.backend]
        await self.finished(connection.execute(sql.replace(":1", mark), *arguments))

    async def pass_guard(self, guard: RequestGuard) -> None:
        if self.backend in ASGI:
            await guard.pass_through_async()
        else:
            guard.pass_through()

    @staticmethod
    async def finished(result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result


@dataclass(frozen=True, slots=True)
class Call:
    """One entry into the handler."""

    operation: str
    item: str
    principal: str


def driven(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError(f"{work} suspended on a thread")
