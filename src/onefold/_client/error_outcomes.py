"""What an error means, for callables whose errors onefold does not know."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from onefold._client.outgoing_request import meaning_of
from onefold._client.retry_conditions import check_seconds
from onefold._policy.outcome import Answered, Outcome, Unanswered, Verdict, verdict
from onefold._policy.retry import TOO_MANY_REQUESTS
from onefold.errors import AnsweredError, ConfigurationError, OnefoldError

#: What a function may return for an error: whether to try again, or in how many seconds; or the outcome itself.
RetryChoice: TypeAlias = bool | float | Outcome | None
On: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], RetryChoice]
#: The same of a result.
ResultIf: TypeAlias = Callable[[Any], RetryChoice]


def outcome_on(on: On) -> Callable[[Exception], Outcome | None]:
    """The outcome an error stands for; None: it is the caller's, and no attempt follows."""
    if isinstance(on, type) or (isinstance(on, tuple) and on):
        kinds = on

        def of_kind(error: Exception) -> Outcome | None:
            return outcome_of(error) if isinstance(error, kinds) else None

        return of_kind
    if not callable(on):
        raise ConfigurationError(
            f"on={on!r} does not say which errors to retry: give an exception class, a tuple of them, or a function"
        )
    judge = on

    def outcome_of_error(error: Exception) -> Outcome | None:
        answer = judge(error)
        if isinstance(answer, Answered | Unanswered):
            return answer
        if isinstance(answer, bool) or answer is None:
            return outcome_of(error) if answer else None
        return Answered(status=TOO_MANY_REQUESTS, retry_after_s=check_seconds("on", judge, answer))

    return outcome_of_error


def outcome_of_result(retry_if: ResultIf, result: object) -> Outcome | None:
    """The outcome that a result stands for; None: it is what the caller wants. A function that returns a result
    works."""
    choice = retry_if(result)
    if choice is None or choice is False or isinstance(choice, Answered | Unanswered):
        return choice or None
    wait_s = None if choice is True else check_seconds("retry_if", retry_if, choice)
    return Answered(status=200, should_retry=True, retry_after_s=wait_s)


def outcome_of(error: Exception) -> Outcome:
    """The outcome that an error stands for. One that carries a response (of httpx, requests or aiohttp) has its status
    and its Retry-After; any other means that there was no answer."""
    if isinstance(error, AnsweredError):
        return Answered(
            status=error.status,
            problem_type=error.slug,
            retry_after_s=error.retry_after_s,
            should_retry=None if error.retryable else False,
        )
    response: Any = getattr(error, "response", None)
    if response is None:
        response = error  # aiohttp's errors carry status and headers themselves
    status = getattr(response, "status_code", None) or getattr(response, "status", None)
    if not isinstance(status, int) or status < 100:  # aiohttp's errors have 0 where there was none
        late = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__  # clients have classes of their own
        return Unanswered(maybe_sent=True, timed_out=late)
    headers: Any = getattr(response, "headers", None) or {}
    return meaning_of(status, headers.get, functools.partial(_body_of, response))


def shows_health(error: Exception) -> bool:
    """Whether an error that is not worth another attempt is an answer of what was called: there is no such row, the
    card is declined. It works then, and a breaker that counts nothing but failures would open. An answer that says
    otherwise, and errors of the network, of time and of onefold itself, show nothing."""
    outcome = outcome_of(error)
    if isinstance(outcome, Answered):
        return verdict(outcome) is Verdict.SUCCESS
    return not (outcome.timed_out or isinstance(error, OSError | OnefoldError))


def _body_of(response: Any) -> bytes | None:
    """Of httpx or requests, where it was read: asking for it must not read it."""
    if getattr(response, "_content", False) is False:
        return None
    body: bytes | None = response.content
    return body


def close_answer(result: Any) -> Any:
    """Free the connection of a result that is not returned, where it is an answer of httpx or aiohttp: what to await,
    or None. Other results are left alone; they may be shared."""
    if isinstance(getattr(result, "status_code", None) or getattr(result, "status", None), int):
        close = getattr(result, "aclose", None) or getattr(result, "close", None)
        return None if close is None else close()
    return None
