"""Attempts as a loop, for code that is not a function:

    for attempt in retrying.attempts("ledger", on=OSError):
        with attempt:
            ...

The same object serves `for` and `async for`; the block is a plain `with` in both.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from onefold._client.call_executors import wait, wait_async
from onefold._client.function_calls import FunctionCalls
from onefold._client.manual_attempts import ManualAttempts
from onefold.errors import ProgrammerError


class Attempt:
    """One attempt, as a block: an error that is worth another attempt does not leave it."""

    __slots__ = ("_call", "_over", "_wait_s")

    def __init__(self, call: ManualAttempts) -> None:
        self._call = call
        self._wait_s: float | None = None
        self._over = False

    @property
    def number(self) -> int:
        """The first is number 1."""
        return self._call.attempts_made

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._over = True
        if error is None or isinstance(error, Exception):
            self._wait_s = self._call.end(error)
        else:
            self._call.close()
        return self._wait_s is not None

    def wait_s(self) -> float | None:
        """The wait before the next attempt, if there is one."""
        if not self._over:
            raise ProgrammerError("an attempt was not made as a block: write `with attempt:` inside of the loop")
        return self._wait_s


class AttemptLoop:
    """The attempts of one call, one after the other, with the waits between them."""

    def __init__(self, calls: FunctionCalls) -> None:
        self._calls = calls

    def __iter__(self) -> Iterator[Attempt]:
        call = ManualAttempts(self._calls)
        try:
            while True:
                call.begin()
                yield (attempt := Attempt(call))
                if (wait_s := attempt.wait_s()) is None:
                    return
                wait(wait_s)
        finally:  # the loop may be left before the attempt was made
            call.close()

    async def __aiter__(self) -> AsyncIterator[Attempt]:
        call = ManualAttempts(self._calls)
        try:
            while True:
                call.begin()
                yield (attempt := Attempt(call))
                if (wait_s := attempt.wait_s()) is None:
                    return
                await wait_async(wait_s)
        finally:
            call.close()
