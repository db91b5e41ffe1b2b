"""Attempts as a loop, for code that is no function:

    for attempt in retrying.attempts("ledger", on=OSError):
        with attempt:
            ...

The same object serves `for` and `async for`; the block is a plain `with` in both.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from types import TracebackType

from onefold._client.calls import Calls
from onefold._client.sleeping import wait, wait_async
from onefold._policy.attempts import Attempts
from onefold.errors import ProgrammerError


class Attempt:
    """One attempt, as a block: an error that is worth another attempt does not leave it."""

    def __init__(self, calls: Calls, attempts: Attempts, began: float) -> None:
        self._calls = calls
        self._attempts = attempts
        self._began = began
        self._wait_s: float | None = None
        self._over = False

    @property
    def number(self) -> int:
        """The first is number 1."""
        return self._attempts.made

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._over = True
        if error is None:
            self._calls.succeeded(self._attempts, self._began)
        elif isinstance(error, Exception):
            self._wait_s = self._calls.failed(self._attempts, error, self._began)
        else:
            self._attempts.excuse()
        return self._wait_s is not None

    def ended(self) -> float | None:
        """The wait before the next attempt, if there is one."""
        if not self._over:
            self._attempts.excuse()
            raise ProgrammerError("an attempt was not made as a block: write `with attempt:` inside of the loop")
        return self._wait_s


class AttemptLoop:
    """The attempts of one call, one after the other, with the waits between them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def __iter__(self) -> Iterator[Attempt]:
        attempts = self._calls.attempts(time.monotonic())
        while True:
            attempt = self._begin(attempts)
            try:
                yield attempt
            except GeneratorExit:  # the loop was left, maybe before the attempt was made: it holds nothing any more
                attempts.excuse()
                raise
            if (wait_s := attempt.ended()) is None:
                return
            wait(wait_s)

    async def __aiter__(self) -> AsyncIterator[Attempt]:
        attempts = self._calls.attempts(time.monotonic())
        while True:
            attempt = self._begin(attempts)
            try:
                yield attempt
            except GeneratorExit:
                attempts.excuse()
                raise
            if (wait_s := attempt.ended()) is None:
                return
            await wait_async(wait_s)

    def _begin(self, attempts: Attempts) -> Attempt:
        now = time.monotonic()
        if (stop := attempts.begin(now)) is not None:
            raise self._calls.refused(stop, attempts, now)
        return Attempt(self._calls, attempts, now)
