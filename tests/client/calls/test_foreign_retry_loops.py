"""tenacity's loop and stamina's, with our budget, breaker and Retry-After."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import stamina
import tenacity

from onefold import Retrying, RetryPolicy
from onefold._client.foreign_retry_loops import StaminaHook
from onefold._policy.outcome import Answered
from onefold.errors import CallNotMade
from tests.client.calls.conftest import Script

COLOURS = ("sync", "async")


@pytest.fixture(autouse=True)
def quick_stamina() -> Iterator[None]:
    """No waits of stamina's own; as many attempts as it is asked for."""
    with stamina.set_testing(True, attempts=100):
        yield


def by_tenacity(settings: dict[str, Any], script: Script, colour: str, slept: list[float]) -> Callable[[], Any]:
    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def called() -> Any:
        return script()

    if colour == "async":
        return tenacity.retry(**settings, sleep=sleep)(called)
    plain = tenacity.retry(**settings, sleep=slept.append)(lambda: script())

    async def awaited() -> Any:
        return plain()

    return awaited


@pytest.mark.parametrize("colour", COLOURS)
class TestTenacity:
    async def test_it_retries_as_we_would(self, colour: str) -> None:
        script, slept = Script(ConnectionError("gone"), ConnectionError("gone"), "done"), list[float]()
        retrying = Retrying(RetryPolicy(budget=None), draw=lambda: 0.5)
        assert await by_tenacity(retrying.tenacity("ledger", on=OSError), script, colour, slept)() == "done"
        assert slept == [0.125, 0.25]

    async def test_the_budget_is_asked(self, colour: str) -> None:
        script, slept = Script(ConnectionError("down")), list[float]()
        settings = Retrying(RetryPolicy(breaker=None)).tenacity("ledger", on=OSError)
        for _ in range(10):
            with pytest.raises(ConnectionError):
                await by_tenacity(settings, script, colour, slept)()
        assert (script.calls, len(slept)) == (13, 3)

    async def test_successes_earn_and_the_breaker_refuses(self, colour: str) -> None:
        settings = Retrying(RetryPolicy(attempts_max=1)).tenacity("ledger", on=OSError)
        down = Script(ConnectionError("down"))
        for _ in range(5):
            with pytest.raises(ConnectionError):
                await by_tenacity(settings, down, colour, [])()
        with pytest.raises(CallNotMade, match="the breaker is open"):
            await by_tenacity(settings, down, colour, [])()
        assert down.calls == 5

    async def test_the_server_is_given_the_time_it_asks_for(self, colour: str) -> None:
        script, slept = Script(ConnectionError("busy"), "done"), list[float]()
        asked = Answered(status=503, retry_after_s=9.0)
        retrying = Retrying(draw=lambda: 0.0)
        assert await by_tenacity(retrying.tenacity("ledger", on=lambda _: asked), script, colour, slept)() == "done"
        assert slept == [9.0]

    async def test_other_errors_pass(self, colour: str) -> None:
        script = Script(KeyError("a bug"))
        with pytest.raises(KeyError):
            await by_tenacity(Retrying().tenacity("ledger", on=OSError), script, colour, [])()
        assert script.calls == 1


def by_stamina(hook: StaminaHook, script: Script, colour: str, *, watched: bool = True) -> Callable[[], Awaitable[Any]]:
    async def called() -> Any:
        return script()

    def plainly() -> Any:
        return script()

    if colour == "async":
        return stamina.retry(on=hook, attempts=100)(hook.watch(called) if watched else called)
    plain = stamina.retry(on=hook, attempts=100)(hook.watch(plainly) if watched else plainly)

    async def awaited() -> Any:
        return plain()

    return awaited


@pytest.mark.parametrize("colour", COLOURS)
class TestStamina:
    @pytest.mark.parametrize("watched", [True, False])
    async def test_it_retries_while_there_is_a_budget(self, colour: str, watched: bool) -> None:
        script = Script(ConnectionError("down"))
        hook = Retrying(RetryPolicy(breaker=None)).stamina("ledger", on=OSError)
        for _ in range(10):
            with pytest.raises(ConnectionError):
                await by_stamina(hook, script, colour, watched=watched)()
        assert script.calls == 13

    async def test_successes_that_are_watched_earn_retries(self, colour: str) -> None:
        hook = Retrying(RetryPolicy(breaker=None)).stamina("ledger", on=OSError)
        with pytest.raises(ConnectionError):
            await by_stamina(hook, Script(ConnectionError("down")), colour)()
        for _ in range(20):
            await by_stamina(hook, Script("fine"), colour)()
        assert await by_stamina(hook, Script(ConnectionError("gone"), "done"), colour)() == "done"

    async def test_the_breaker_refuses(self, colour: str) -> None:
        hook = Retrying().stamina("ledger", on=OSError)
        down = Script(ConnectionError("down"))
        for _ in range(2):  # with three retries in all
            with pytest.raises(ConnectionError):
                await by_stamina(hook, down, colour)()
        with pytest.raises(CallNotMade, match="the breaker is open"):
            await by_stamina(hook, down, colour)()
        assert down.calls == 5

    async def test_other_errors_pass(self, colour: str) -> None:
        script = Script(KeyError("a bug"))
        with pytest.raises(KeyError):
            await by_stamina(Retrying().stamina("ledger", on=OSError), script, colour)()
        assert script.calls == 1


def test_the_server_is_given_the_time_it_asks_for() -> None:
    hook = Retrying(draw=lambda: 0.0).stamina("ledger", on=lambda _: Answered(status=503, retry_after_s=9.0))
    assert hook(ConnectionError("busy")) == 9.0


def test_without_being_asked_staminas_own_wait_is_right() -> None:
    hook = Retrying().stamina("ledger", on=OSError)
    assert [hook(ConnectionError("gone")) for _ in range(4)] == [True, True, True, False]


def test_an_interruption_says_nothing_about_the_host() -> None:
    hook = Retrying().stamina("ledger", on=OSError)

    @hook.watch
    def interrupted() -> None:
        raise KeyboardInterrupt

    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
