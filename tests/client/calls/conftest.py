"""Calls that fail on command, and never wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import pytest

from onefold import Retrying
from onefold._client.error_outcomes import On
from onefold.telemetry import Event
from onefold.testing.no_waiting import no_waiting

#: Makes a call out of what it should do, time after time: raise what is an error, else return it. The last is repeated.
Make: TypeAlias = Callable[..., Callable[[], Awaitable[Any]]]


class Script:
    """What a function does, time after time, and how often it was called."""

    def __init__(self, *script: object) -> None:
        self._script = script
        self.calls = 0

    def __call__(self) -> Any:
        act = self._script[min(self.calls, len(self._script) - 1)]
        self.calls += 1
        if isinstance(act, BaseException):
            raise act
        return act


class Ways:
    """The ways in which a call can be retried, told apart by name; all of them are awaited."""

    NAMES = ("function", "coroutine function", "for", "async for")

    def __init__(self, name: str) -> None:
        self._name = name

    def around(self, retrying: Retrying, script: Script, on: On, to: str = "ledger") -> Callable[[], Awaitable[Any]]:
        async def call() -> Any:
            match self._name:
                case "function":
                    return retrying.calls(to, on=on)(lambda: script())()
                case "coroutine function":

                    async def awaited() -> Any:
                        return script()

                    return await retrying.calls(to, on=on)(awaited)()
                case "for":
                    for attempt in retrying.attempts(to, on=on):
                        with attempt:
                            return script()
                case _:
                    async for attempt in retrying.attempts(to, on=on):
                        with attempt:
                            return script()
            raise AssertionError("a loop of attempts ended without a result and without an error")

        return call


@pytest.fixture(params=Ways.NAMES)
def way(request: pytest.FixtureRequest) -> Ways:
    return Ways(request.param)


@pytest.fixture
def heard() -> list[Event]:
    return []


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    with no_waiting():
        yield
