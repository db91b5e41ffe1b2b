"""Settings are refused when they are made, with a message that says what to choose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onefold._policy.limiter import LimiterConfig
from onefold.errors import ConfigurationError
from onefold.shedding import Shedding


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shedding(limit=0), "^limit=0 is out of range"),
        (lambda: Shedding(queue_most=-1), "^queue_most=-1"),
        (lambda: Shedding(wait_most_s=0), "^wait_most_s=0"),
        (lambda: Shedding(status=500), "^status=500 is not one of 429, 503"),  # type: ignore[arg-type]
        (lambda: Shedding(exempt="/health"), "give a list of paths"),
        (lambda: Shedding(exempt=["health"]), "'health', which is not a path"),
        (lambda: Shedding(retry_after_s=(0, 5)), "retry_after_s"),
        (lambda: Shedding(retry_after_s=(5, 2)), "retry_after_s"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_number_is_a_limit_that_stays() -> None:
    assert Shedding(limit=7).limiter_config == LimiterConfig(initial=7, least=7, most=7)
    assert Shedding().limiter_config == LimiterConfig()
