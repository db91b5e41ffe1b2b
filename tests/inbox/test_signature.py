"""What handlers and their dependencies take: read, or refused, where they are defined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import pytest
from fastapi import Depends as FastApiDepends

from onefold import Depends, Message, Transaction
from onefold._inbox.consumer import Consumer
from onefold._inbox.handler_signature import Needed
from onefold.brokers import Delivery
from onefold.errors import ConfigurationError
from onefold.fastapi import AsyncRequestSession, Condition, SessionTx, Tx

if TYPE_CHECKING:
    from decimal import Decimal as Order


def consumer(handler: Callable[..., Any], **settings: Any) -> Consumer:
    return Consumer(name="billing", topics=("order.placed",), handler=handler, **settings)


def takes(handler: Callable[..., Any], **settings: Any) -> list[tuple[str | None, Any]]:
    """Each argument: by what name it is passed, and what it is."""
    return [(parameter.name, parameter.value) for parameter in consumer(handler, **settings).signature.parameters]


def rates() -> dict[str, float]:
    return {}


def audit(tx: Transaction[Any], message: Message) -> Iterator[str]:
    yield "audit"


async def awaited() -> str:
    return ""


async def yielded() -> AsyncIterator[str]:
    yield ""


class Clerk:
    def __init__(self, rates: Annotated[Any, Depends(rates)]) -> None:
        self.rates = rates


def test_what_says_nothing_is_the_message_and_then_the_transaction() -> None:
    assert takes(lambda message: None) == [(None, "message")]
    assert takes(lambda event, connection: None) == [(None, "message"), (None, "tx")]
    assert takes(lambda event, tx=None: None) == [(None, "message"), (None, "tx")]


def test_parameters_say_what_they_are_by_their_annotations_in_any_order() -> None:
    async def handler(tx: Transaction[Any], given: Message, *, again: Message, limit: int = 3) -> None: ...

    def many(given: Sequence[Message], tx: Any) -> None: ...

    assert takes(handler) == [(None, "tx"), (None, "message"), ("again", "message")]
    assert takes(many, batch=10) == [(None, "message"), (None, "tx")]


def test_a_parameter_with_a_default_that_nothing_is_known_of_keeps_it() -> None:
    def handler(message: Message, limit: int = 3, tx: Any = None) -> None: ...

    assert takes(handler) == [(None, "message"), ("tx", "tx")]


def test_what_a_dependency_takes_is_read_by_the_same_rules() -> None:
    async def handler(
        message: Message,
        found: Annotated[str, Depends(audit)],
        other: Annotated[str, Depends(awaited)],
        clerk: Annotated[Clerk, Depends()],
        old_style: str = Depends(yielded),  # type: ignore[assignment]
    ) -> None: ...

    values = [value for _, value in takes(handler)][1:]
    assert all(isinstance(value, Needed) for value in values)
    assert [value.signature.kind for value in values] == ["generator", "async", "plain", "async generator"]
    assert [parameter.value for parameter in values[0].signature.parameters] == ["tx", "message"]
    assert [type(parameter.value) for parameter in values[2].signature.parameters] == [Needed]
    assert consumer(handler).signature.opens
    assert not consumer(lambda message: None).signature.opens


def needs_what_nobody_has(message: Message, secret: str) -> None: ...


def needs_the_wrong_thing(message: Message, delivery: Delivery) -> None: ...


def takes_a_name_for_type_checkers(order: Order) -> None: ...


def depends_on_what_nobody_has(message: Message, found: Annotated[Any, Depends(needs_what_nobody_has)]) -> None: ...


def depends_on_what_must_be_awaited(message: Message, found: Annotated[Any, Depends(awaited)]) -> None: ...


def depends_on_what_yields_asynchronously(message: Message, found: Annotated[Any, Depends(yielded)]) -> None: ...


def depends_on_nothing(message: Message, found: Annotated[str | int, Depends()]) -> None: ...


def yields(message: Message) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (needs_what_nobody_has, r"must take the message.*Nothing is known of 'secret'"),
        (needs_the_wrong_thing, "that cannot be had here"),
        (takes_a_name_for_type_checkers, "cannot be looked up in the handler's module"),
        (depends_on_what_nobody_has, r"the dependency of consumer 'billing' .*Nothing is known of 'secret'"),
        (depends_on_what_must_be_awaited, "cannot await its dependency awaited"),
        (depends_on_what_yields_asynchronously, "cannot await its dependency yielded"),
        (depends_on_nothing, "not a class that could be called"),
        (lambda *messages: None, "must take the message"),
        (lambda message, **more: None, "must take the message"),
        (yields, "must take the message"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_at_definition(handler: Callable[..., Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        consumer(handler)


def returns_text(message: Message) -> str:
    return ""


async def returns_numbers(message: Message) -> list[int]:
    return []


@pytest.mark.parametrize("handler", [returns_text, returns_numbers])
def test_a_handler_that_says_it_returns_something_is_refused_at_definition(handler: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="a handler returns None, and raises to say that it failed"):
        consumer(handler)


def may_return(message: Message) -> str | None:
    return None


def never_returns(message: Message) -> NoReturn:
    raise ValueError


def returns_a_type_for_type_checkers(message: Message) -> Order:
    raise NotImplementedError


@pytest.mark.parametrize("handler", [may_return, never_returns, returns_a_type_for_type_checkers, lambda message: None])
def test_one_that_may_return_none_is_not(handler: Callable[..., Any]) -> None:
    consumer(handler)


def asks_fastapi(message: Message, found: Annotated[str, FastApiDepends(awaited)]) -> None: ...


def asks_fastapi_in_old_style(message: Message, found: str = FastApiDepends(awaited)) -> None: ...


@pytest.mark.parametrize("handler", [asks_fastapi, asks_fastapi_in_old_style])
def test_the_depends_of_fastapi_is_refused_and_ours_is_named(handler: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"Depends of fastapi.*from onefold import Depends"):
        consumer(handler)


def takes_tx_of_endpoints(message: Message, tx: Tx[Any]) -> None: ...


def takes_a_session_of_endpoints(message: Message, s: SessionTx) -> None: ...


async def takes_an_async_session_of_endpoints(message: Message, s: AsyncRequestSession) -> None: ...


def takes_a_condition(message: Message, condition: Condition) -> None: ...


def depends_on_tx_of_endpoints(message: Message, found: Annotated[Any, Depends(takes_tx_of_endpoints)]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (takes_tx_of_endpoints, r"'tx' is Tx of onefold.fastapi, .*write `tx: Transaction\[...\]`"),
        (takes_a_session_of_endpoints, r"'s' is a session of onefold.fastapi, .*write `s: Session`.*sqlalchemy.orm"),
        (takes_an_async_session_of_endpoints, r"write `s: AsyncSession`.*from sqlalchemy.ext.asyncio"),
        (takes_a_condition, r"'condition' is a dependency of onefold.fastapi, .*take it out"),
        (depends_on_tx_of_endpoints, r"'tx' is Tx of onefold.fastapi"),
    ],
)
def test_what_endpoints_take_is_refused_and_what_handlers_take_instead_is_named(
    handler: Callable[..., Any], says: str
) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        consumer(handler)
    assert "Depends" not in str(refused.value)


def test_what_depends_on_itself_is_refused() -> None:
    def first(found: Any) -> None: ...

    first.__annotations__["found"] = Annotated[Any, Depends(first)]

    def handler(message: Message, found: Annotated[Any, Depends(first)]) -> None: ...

    handler.__annotations__["found"] = Annotated[Any, Depends(first)]
    with pytest.raises(ConfigurationError, match="first depends on itself"):
        consumer(handler)


def test_a_dependency_that_cannot_be_called_is_refused_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match=r"Depends\('rates'\) cannot be called"):
        Depends("rates")  # type: ignore[arg-type]
