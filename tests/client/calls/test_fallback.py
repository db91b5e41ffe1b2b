"""What is answered when all attempts are in vain."""

from __future__ import annotations

import pytest

from onefold import Retrying, RetryPolicy
from onefold.clients import fallback
from onefold.errors import CallNotMade, ConfigurationError
from tests.client.calls.conftest import Script

ON = (ConnectionError, CallNotMade)


def test_after_the_last_attempt_and_while_the_breaker_is_open_the_fallback_answers() -> None:
    script, errors = Script(ConnectionError("down")), list[str]()

    def last_known(error: Exception) -> str:
        errors.append(type(error).__name__)
        return "last known"

    @fallback(last_known, on=ON)
    @Retrying(RetryPolicy(attempts_max=3, budget=None)).calls("prices", on=ConnectionError)
    def price() -> str:
        return str(script())

    assert [price() for _ in range(3)] == ["last known"] * 3
    assert script.calls == 5
    assert errors == ["ConnectionError", "ConnectionError", "CallNotMade"]


async def test_a_coroutine_function_has_one_too_and_other_errors_pass() -> None:
    async def last_known(error: Exception) -> str:
        return f"instead of {error}"

    async def price(error: Exception) -> str:
        raise error

    kept = fallback(last_known, on=ConnectionError)(price)
    assert await kept(ConnectionError("down")) == "instead of down"
    with pytest.raises(KeyError):
        await kept(KeyError("a bug"))


@pytest.mark.parametrize("on", [(), KeyboardInterrupt, "ConnectionError"], ids=repr)
def test_what_names_no_errors_is_refused(on: object) -> None:
    with pytest.raises(ConfigurationError, match="which errors"):
        fallback(str, on=on)  # type: ignore[arg-type]
