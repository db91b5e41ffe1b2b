"""The user's own judgement of an answer or an error, beside that of HTTP: `retry_if`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from numbers import Real
from typing import Any, TypeAlias

from onefold._kernel.executors import name_of
from onefold._policy.outcome import Answered, Unanswered
from onefold._policy.retry_after import ABSURD_S
from onefold.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer as `retry_if` sees it, whichever client received it: its `status`, and the `method` and the `address`
    of the request."""

    method: str
    address: str
    status: int
    header: Callable[[str], str | None]
    """The value of a header, by its name in any case."""
    body: bytes | None
    """Unpacked. None where it is still arriving: it is long, or a stream."""

    def json(self) -> Any:
        """The body as JSON; None where it is none, or is not there yet."""
        try:
            return None if self.body is None else json.loads(self.body)
        except (ValueError, RecursionError):
            return None


#: Of an answer or an error: True: try again. False: do not. A number: in so many seconds. None: as without it.
RetryIf: TypeAlias = Callable[[HttpAnswer | Exception], bool | float | None]


def check_condition(given: object) -> Any:
    """Refuse what is not a function, where it is written."""
    if given is None:
        return None
    if not callable(given):
        raise ConfigurationError(
            f"retry_if={given!r} must be a function from an answer or an error to True, False, seconds or None"
        )
    if inspect.iscoroutinefunction(given):
        raise ConfigurationError(f"retry_if: {name_of(given)} is a coroutine function; write it with `def`")
    return given


def check_seconds(setting: str, function: Callable[..., Any], returned: Any) -> float:
    """The seconds that a function of the user returned. What is beyond ten years is ten years: too long to wait for
    either way, and still a date."""
    is_number: bool = isinstance(returned, Real)
    if is_number and 0 <= returned < inf:
        return float(min(returned, ABSURD_S))
    if inspect.iscoroutine(returned):
        returned.close()
    raise ConfigurationError(
        f"{setting}: {name_of(function)} returned {returned!r}, which is none of True, False, None and a number of "
        "seconds from 0 on"
    )


def apply_to_answer(answered: Answered, retry_if: RetryIf, answer: HttpAnswer) -> Answered:
    """What an answer means, by `retry_if`."""
    choice = retry_if(answer)
    if choice is None:
        return answered
    if isinstance(choice, bool):
        return replace(answered, should_retry=choice)
    return replace(answered, should_retry=True, retry_after_s=check_seconds("retry_if", retry_if, choice))


def apply_to_error(outcome: Unanswered | None, retry_if: RetryIf, error: Exception) -> Unanswered | None:
    """The outcome of an error, by `retry_if`; None: it is the caller's. Whether the request may have been sent stays
    as it is, and so does what the error says of the host."""
    choice = retry_if(error)
    if choice is None:
        return outcome
    if choice is False:
        return None if outcome is None else replace(outcome, should_retry=False)
    failed = outcome or Unanswered(maybe_sent=True)
    return failed if choice is True else replace(failed, retry_after_s=check_seconds("retry_if", retry_if, choice))
