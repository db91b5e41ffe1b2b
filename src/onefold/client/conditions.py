"""What the user says about an answer or an error, beside what HTTP says: `retry_if`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from onefold.errors import ConfigurationError
from onefold.policy.outcome import Answered, Outcome, Unanswered
from onefold.policy.retry import TOO_MANY_REQUESTS


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer as `retry_if` sees it, whichever client received it."""

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


def checked_condition(given: object) -> Any:
    """Refuse what is no function, where it is written."""
    if given is not None and not callable(given):
        raise ConfigurationError(
            f"retry_if={given!r} must be a function from an answer or an error to True, False, seconds or None"
        )
    return given


def as_said(answered: Answered, said: bool | float | None) -> Answered:
    """What an answer means, after the user was asked."""
    if said is None:
        return answered
    if isinstance(said, bool):
        return replace(answered, should_retry=said)
    return replace(answered, should_retry=True, retry_after_s=float(said))


def error_as_said(outcome: Outcome | None, said: bool | float | None) -> Outcome | None:
    """The same of an error; None: it is the caller's."""
    if said is None:
        return outcome
    if isinstance(said, bool):
        return (outcome or Unanswered(maybe_sent=True)) if said else None
    return Answered(status=TOO_MANY_REQUESTS, retry_after_s=float(said))
