"""Recorded results: what is accepted comes back as it was, and what would not is refused where it is returned."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._kernel.result_codecs import Text
from onefold._kernel.results import decode_result, encode_result, result_type_of
from onefold.errors import ResultNotSerializable, ResultUnreadable

if TYPE_CHECKING:
    from fractions import Fraction

OrderId = NewType("OrderId", int)


class Currency(Enum):
    EUR = "eur"
    USD = "usd"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Odd(Enum):
    NOTHING = None
    PAIR = (1, 2)


@dataclass(frozen=True)
class Money:
    amount: Decimal
    currency: Currency = Currency.EUR


@dataclass
class Charge:
    id: UUID
    total: Money
    at: datetime
    refunds: list[Money] = field(default_factory=list)
    notes: dict[str, Money | None] = field(default_factory=dict)
    settled_on: date | None = None
    parent: Charge | None = None


class Point(NamedTuple):
    x: int
    y: float


class Address(TypedDict):
    street: str
    zip: NotRequired[int]


@dataclass
class Cash:
    given: int


@dataclass
class Card:
    number: str


@dataclass
class Cheque:
    number: str


@dataclass
class Salted:
    salt: InitVar[str]
    value: int = 0


class Receipt(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    number: int = pydantic.Field(alias="receiptNumber")
    at: datetime
    total: Decimal
    lines: list[str] = []


class Loose(pydantic.BaseModel):
    ratio: float = 1.0
    hidden: int = pydantic.Field(default=0, exclude=True)


def back(value: Any, annotation: Any = Any) -> Any:
    return decode_result(encode_result(value, annotation), annotation)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
moments = st.datetimes() | st.datetimes(
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-7, minutes=-30, seconds=-5))])
)
money = st.builds(Money, st.decimals(allow_nan=False, allow_infinity=False), st.sampled_from(Currency))
charges = st.recursive(
    st.builds(Charge, st.uuids(), money, moments),
    lambda inner: st.builds(
        Charge,
        st.uuids(),
        money,
        moments,
        st.lists(money, max_size=2),
        st.dictionaries(st.text(), st.none() | money, max_size=2),
        st.none() | st.dates(),
        inner,
    ),
    max_leaves=3,
)

TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, plain),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False) | st.integers()),
    (str | None, st.none() | st.text()),
    (int | str | None, st.none() | st.text() | st.integers()),
    (bytes, st.binary()),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (UUID, st.uuids()),
    (Currency, st.sampled_from(Currency)),
    (list[Level], st.lists(st.sampled_from(Level))),
    (set[date], st.sets(st.dates())),
    (frozenset[str], st.frozensets(st.text())),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
    (tuple[int, str | None], st.tuples(st.integers(), st.none() | st.text())),
    (dict[int, list[str]], st.dictionaries(st.integers(), st.lists(st.text()))),
    (dict[UUID, Money], st.dictionaries(st.uuids(), money)),
    (dict[Currency, int], st.dictionaries(st.sampled_from(Currency), st.integers())),
    (Point, st.builds(Point, st.integers(), st.floats(allow_nan=False, allow_infinity=False))),
    (Address, st.fixed_dictionaries({"street": st.text()}, optional={"zip": st.integers()})),
    (Charge, charges),
    (Sequence[Charge | None], st.lists(st.none() | charges, max_size=3)),
    (Mapping[str, Charge], st.dictionaries(st.text(), charges, max_size=2)),
    (Cash | Card, st.builds(Cash, st.integers()) | st.builds(Card, st.text())),
    (
        Receipt,
        st.builds(
            lambda number, at, total, lines: Receipt(receiptNumber=number, at=at, total=total, lines=lines),
            st.integers(),
            st.datetimes(timezones=st.just(UTC)),  # pydantic cuts the seconds of an offset
            st.decimals(allow_nan=False, allow_infinity=False, places=2),
            st.lists(st.text(), max_size=2),
        ),
    ),
    (Annotated[OrderId, "of the shop"], st.integers()),
    (Literal["paid", 7, None], st.sampled_from(["paid", 7, None])),
]


@pytest.mark.parametrize(("annotation", "values"), TYPED)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_accepted_comes_back_equal_and_of_its_type(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    found = back(value, annotation)
    assert found == value
    assert type(found) is type(value)


@settings(max_examples=200, deadline=None)
@given(value=st.from_type(object) | plain | st.floats() | st.tuples(st.integers()) | st.text(st.characters()))
def test_any_value_is_refused_or_comes_back_equal(value: object) -> None:
    try:
        data = encode_result(value)
    except ResultNotSerializable:
        return
    assert decode_result(data) == value


def test_the_property_finds_a_codec_that_loses_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a codec of dates that cuts their time zone, without the check that it reads what it wrote."""
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr(Text, "write", lambda self, value: value.replace(tzinfo=None).isoformat())
    with pytest.raises((AssertionError, TypeError)):
        assert back(moment, datetime) == moment


@pytest.mark.parametrize(
    ("value", "annotation", "told"),
    [
        ((1, 2), Any, "tuple is not a plain JSON value"),
        ({1: "a"}, Any, "int is not text"),
        (math.nan, Any, "nan is not a JSON number"),
        (math.inf, float, "inf is not a JSON number"),
        ([{"a": [1, object()]}], Any, r"at \[0\]\.a\[1\]: object is not a plain JSON value"),
        (Money(Decimal(1)), Any, "Money is not a plain JSON value"),
        (True, int, "bool is not int"),
        (Level.LOW, int, "Level is not int"),
        ("x", Money, "str is not Money"),
        (Money(1), Money, r"at \.amount: int is not Decimal"),  # type: ignore[arg-type]
        (Decimal("NaN"), Decimal, "would not be equal"),
        (Decimal("sNaN"), Decimal, "Decimal"),
        (datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")), datetime, "would not be equal"),
        (datetime(2026, 1, 1, tzinfo=UTC), date, "datetime is not date"),
        ((1,), Sequence[int], "tuple is not a list"),
        ((1, 2, 3), tuple[int, int], "3 items instead of 2"),
        (Odd.PAIR, Odd, "tuple is not a plain JSON value"),
        (Odd.NOTHING, Odd | None, "would be read as None"),
        (Cheque("1"), Card | Cheque, "Cheque would be read as Card"),
        ({"street": "a", "city": "b"}, Address, "no field 'city' in Address"),
        ({"zip": 1}, Address, "field 'street' is missing"),
        ({None: 1}, dict[str | None, int], "is not text in JSON"),
        ("\ud800", Any, "surrogates"),
        ([10**5000], Any, "digits"),
        (Loose(ratio=math.nan), Loose, "JSON"),
        (1, object(), "is nothing that can be written as JSON"),
        (1, Callable[[], int], "is nothing that can be written as JSON"),
        (Salted("s"), Salted, "InitVar 'salt'"),
    ],
)
def test_what_would_come_back_as_something_else_is_refused_with_its_place_and_its_type(
    value: object, annotation: object, told: str
) -> None:
    with pytest.raises(ResultNotSerializable, match=told) as caught:
        encode_result(value, annotation, what="the result of call 'charge'")
    assert str(caught.value).startswith("the result of call 'charge' cannot be ")


def test_a_result_that_contains_itself_is_refused() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ResultNotSerializable):
        encode_result(circle)


def test_a_result_has_a_largest_size_and_the_error_says_what_to_do() -> None:
    assert encode_result("x" * 98, bytes_max=100)
    with pytest.raises(ResultNotSerializable, match="has 101 bytes as JSON, at most 100: store what is large"):
        encode_result("x" * 99, bytes_max=100)


def test_values_are_in_no_error() -> None:
    secret = "4111111111111111"
    for attempt in (
        lambda: encode_result({"card": {secret}}, Any),
        lambda: encode_result([secret], list[int]),
        lambda: encode_result({secret: secret}, dict[str, int]),
        lambda: decode_result(f'["{secret}"]'.encode(), list[Money]),
        lambda: decode_result(f'{{"receiptNumber":"{secret}"}}'.encode(), Receipt),
        lambda: decode_result(f'{{"amount":"{secret}","currency":"{secret}"}}'.encode(), Money),
    ):
        with pytest.raises((ResultNotSerializable, ResultUnreadable)) as caught:
            attempt()
        assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "annotation", "told"),
    [
        (b'{"amount":"1","tax":"2"}', Money, "no field 'tax' in Money"),
        (b"{}", Money, "field 'amount' is missing"),
        (b'{"amount":"one"}', Money, r"at \.amount: the text is not a valid Decimal"),
        (b'{"amount":"1","currency":"gbp"}', Money, "no member of Currency"),
        (b'[{"amount":1}]', list[Money], r"at \[0\]\.amount: int is not the text of a Decimal"),
        (b"NaN", Any, "NaN is not a number"),
        (b"{", Any, "not JSON"),
        (b"\xff", Any, "not JSON"),
        (b'{"receiptNumber":"a"}', Receipt, "receiptNumber: int_type, at: missing, total: missing"),
        (b"[" * 100_000, Any, "not JSON"),
    ],
)
def test_a_record_that_no_longer_fits_its_type_is_refused_and_says_what_to_do(
    data: bytes, annotation: object, told: str
) -> None:
    with pytest.raises(ResultUnreadable, match=told):
        decode_result(data, annotation, what="the result of call 'charge'")


def test_a_field_that_was_added_takes_its_default_in_records_from_before() -> None:
    assert decode_result(b'{"amount":"1"}', Money) == Money(Decimal(1))


def test_a_field_that_the_model_does_not_write_is_not_recorded() -> None:
    assert back(Loose(hidden=7), Loose) == Loose(hidden=0)


class Bank:
    def charge(self) -> Money:
        return Money(Decimal(1))

    async def refund(self) -> Money | None:
        return None

    def __call__(self) -> Charge:
        raise NotImplementedError


def untyped(amount: int):  # type: ignore[no-untyped-def]
    return amount


def later() -> Awaitable[Money]:
    raise NotImplementedError


def much_later() -> Coroutine[Any, Any, list[Money]]:
    raise NotImplementedError


def nested() -> list["Charge"]:  # noqa: UP037
    raise NotImplementedError


def unknown() -> Fraction:
    raise NotImplementedError


def nothing() -> None: ...


def wrapping() -> Callable[[], Any]:
    @functools.wraps(nested)
    def inner(*args: object) -> Any: ...

    return inner


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (Bank().charge, Money),
        (Bank().refund, Money | None),
        (Bank(), Charge),
        (Bank, Bank),
        (functools.partial(functools.partial(Bank().charge)), Money),
        (functools.partial(asyncio.to_thread, Bank().charge), Money),
        (functools.partial(asyncio.to_thread, functools.partial(nested)), list[Charge]),
        (untyped, Any),
        (later, Money),
        (much_later, list[Money]),
        (nested, list[Charge]),
        (wrapping(), list[Charge]),
        (nothing, type(None)),
        (len, Any),
        (lambda: 1, Any),
    ],
)
def test_the_type_of_a_result_is_what_awaiting_the_function_gives(function: Callable[..., Any], expected: Any) -> None:
    assert result_type_of(function) == expected


def test_a_type_that_cannot_be_looked_up_is_refused_with_its_name() -> None:
    with pytest.raises(ResultNotSerializable, match=r"Fraction.*import it outside of TYPE_CHECKING"):
        encode_result(1, result_type_of(unknown))


def test_a_class_of_a_function_is_known_where_the_function_refers_to_it() -> None:
    @dataclass
    class Local:
        number: int

    def make() -> Local:
        return Local(1)

    assert back(make(), result_type_of(make)) == Local(1)
