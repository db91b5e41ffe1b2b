"""The ledger forgets after its retention, in batches; and a retention that could repeat a message is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.orm import Session

from onefold._inbox.consumer import DAY_S, Consumer
from onefold._inbox.retention import reap
from onefold._kernel.messages import stream_of
from onefold.errors import ConfigurationError
from tests.inbox.backends import Backend, message

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession


def nothing(message: Any) -> None:
    """Handle nothing."""


consumer = partial(Consumer, name="billing", topics=("order.placed",), handler=nothing)


async def test_what_is_past_its_retention_is_forgotten_in_batches_and_nothing_else(backend: Backend) -> None:
    inbox = backend.inbox()
    for number in range(7):
        await backend.deliver(inbox, message(f"m{number}"))
    old = "handled_at = now() - interval '8 days'" if backend.dialect == "postgres" else "handled_at_ms = 1"
    await backend.change(f"UPDATE onefold_inbox SET {old} WHERE message_id < 'm5'")
    assert await backend.flow(reap(backend.dialect, "billing", 7 * DAY_S, limit=2, batches_max=2)) == 4
    assert await backend.flow(reap(backend.dialect, "billing", 7 * DAY_S, limit=2)) == 1
    assert await backend.ledger() == ["m5", "m6"]


def test_a_ledger_that_forgets_before_the_broker_does_is_refused() -> None:
    consumer(retention_s=7 * DAY_S).check_redelivery(7 * DAY_S)
    with pytest.raises(ConfigurationError, match=r"retention_s=604800 .* 691200 s"):
        consumer().check_redelivery(8 * DAY_S)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"retention_s": 3600.0}, "retention_s=3600 .* redriven for 604800 s"),
        ({"attempts": 1000, "dead_letter_s": 0.0}, "attempts may take"),
        ({"name": "a b"}, "consumer name 'a b'"),
        ({"topics": ()}, "topics"),
        ({"topics": "order.placed"}, "topics"),
        ({"topics": ("a b",)}, "the topic 'a b'"),
        ({"order": "backwards"}, "order='backwards'"),
        ({"order": "strict", "batch": 10}, "keeps no order"),
        ({"batch": 0}, "batch=0"),
        ({"attempts": 0}, "attempts=0"),
        ({"lease_s": 0.0}, "lease_s=0.0"),
        ({"concurrency": 0}, "concurrency=0"),
        ({"handler": lambda: None}, "must take the message"),
        ({"handler": lambda a, b, c: None}, "must take the message"),
        ({"handler": lambda a, *, b: None}, "must take the message"),
        ({"handler": 7}, "cannot be called"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        consumer(**settings)


class Handler:
    async def __call__(self, message: Any, tx: Any) -> None:
        """Handle nothing."""

    def method(self, message: Any) -> None:
        """Handle nothing."""


async def coroutine(message: Any, tx: Any, /) -> None:
    """Handle nothing."""


def with_session(message: Any, session: Session) -> None:
    """Handle nothing."""


class OwnSession(Session):
    """An application's own."""


def with_session_of_its_own(message: Any, session: OwnSession) -> None:
    """Handle nothing."""


async def with_async_session(message: Any, session: AsyncSession) -> None:
    """Handle nothing. Its session's type is not imported at run time."""


@pytest.mark.parametrize(
    ("handler", "takes", "is_async"),
    [
        (nothing, ["message"], False),
        (coroutine, ["message", "tx"], True),
        (partial(coroutine), ["message", "tx"], True),
        (Handler(), ["message", "tx"], True),
        (Handler().method, ["message"], False),
        (with_session, ["message", "Session"], False),
        (with_session_of_its_own, ["message", "Session"], False),
        (with_async_session, ["message", "AsyncSession"], True),
    ],
)
def test_what_a_handler_takes_is_read_from_its_signature(
    handler: Callable[..., Any], takes: list[str], is_async: bool
) -> None:
    made = consumer(handler=handler)
    assert (list(made.signature.values()), made.is_async) == (takes, is_async)


def test_a_stream_keeps_the_name_that_databases_know_it_by() -> None:
    assert stream_of("shop", "order.placed", "k").hex() == "16c6ad4a4788707b931a06e89bc4640d"


def test_the_attempts_of_a_message_take_about_an_hour() -> None:
    settings = consumer(lease_s=0.1)
    assert 3000 < settings.retry_horizon_s < 4000
