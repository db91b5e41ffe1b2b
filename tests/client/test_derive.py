"""Derived keys are the same for ever, and differ wherever their parts do."""

from __future__ import annotations

import enum
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold._kernel.derive import derive
from onefold.errors import KeyNotDerivable
from tests.policy.properties import planted, properties

NOON = datetime(2026, 1, 2, 12, 0, 0, 5, tzinfo=UTC)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Ident(UUID):
    """As some drivers return them."""


@pytest.mark.parametrize(
    ("parts", "key"),
    [
        (("pay",), "a3a1f794-2274-89b9-ac73-72577cf4067d"),
        (("pay", "ord-42", 1), "acd887d8-7f7a-8ee0-acd6-5b47ff80bff0"),
        (("a", "bc"), "51b77de9-742f-8fb2-8290-124438206456"),
        (("ab", "c"), "c462f17e-b634-8551-902b-3d7d01926fbd"),
        ((1,), "bf9de8d2-a4ed-82ee-a30d-cdc9403c9a3f"),
        (("1",), "7e1a5dc2-b468-8fcc-8879-01a15369bf30"),
        ((True,), "df92e619-3955-8695-abe8-0c7a26d95dab"),
        ((-255,), "977acf99-bdcf-8aa6-8b65-469a8685b06a"),
        ((b"1",), "4ff95131-cc5a-83f4-9069-b15ba2f5aa8a"),
        ((UUID(int=1),), "464c0dc4-bbfe-83a4-a34c-fbb99687230c"),
        ((date(2026, 1, 2),), "66a6097e-a007-8f43-85bb-956c80d7fbe4"),
        ((NOON,), "e2e60dda-eef9-8719-a78a-df123497f3a5"),
        (("zahlung", "ü支🙂"), "3e23faef-4acd-8052-bf5e-28d9ea9d710a"),
    ],
    ids=repr,
)
def test_a_key_once_derived_is_never_another(parts: tuple[Any, ...], key: str) -> None:
    """These values are a promise: whoever must change one makes calls of people happen twice."""
    assert derive(*parts) == key


def test_a_key_is_a_uuid_of_the_version_for_ones_own_making() -> None:
    made = UUID(derive("pay", 7))
    assert (made.version, made.variant) == (8, RFC_4122)


@pytest.mark.parametrize(
    ("one", "same"),
    [
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Ident(int=7), UUID(int=7)),
        (NOON, NOON.astimezone(timezone(timedelta(hours=-5)))),
    ],
    ids=["text", "number", "uuid", "moment"],
)
def test_what_is_the_same_underneath_has_the_same_key(one: Any, same: Any) -> None:
    assert derive(one) == derive(same)


def test_a_moment_at_the_end_of_time_is_one_too() -> None:
    assert derive(datetime.min.replace(tzinfo=timezone(timedelta(hours=5)))) != derive(datetime.max.replace(tzinfo=UTC))


PARTS = st.lists(
    st.one_of(
        st.text(alphabet="ab1\0", max_size=4),
        st.integers(-3, 300),
        st.integers(),
        st.booleans(),
        st.binary(max_size=3),
        st.uuids(),
        st.dates(),
        st.datetimes(timezones=st.just(UTC)),
    ),
    min_size=1,
    max_size=4,
)


def same_parts(one: list[Any], other: list[Any]) -> bool:
    return [(type(part), part) for part in one] == [(type(part), part) for part in other]


@properties
@given(PARTS, PARTS)
def test_keys_are_equal_where_all_parts_are_and_nowhere_else(one: list[Any], other: list[Any]) -> None:
    assert (derive(*one) == derive(*other)) is same_parts(one, other)
    assert derive(*one) == derive(*one)


def test_control_joined_text_is_seen_to_be_ambiguous() -> None:
    @planted
    @given(PARTS, PARTS)
    def joined(one: list[Any], other: list[Any]) -> None:
        assert ("".join(map(str, one)) == "".join(map(str, other))) is same_parts(one, other)

    with pytest.raises(AssertionError):
        joined()


@pytest.mark.parametrize(
    ("part", "says"),
    [
        (1.5, "part 2 of derive(), 1.5, is a float"),
        (None, "part 2 of derive(), None, is nothing"),
        (Decimal("1.50"), "part 2 of derive(), Decimal('1.50'), of type Decimal"),
        (object, "of type type"),
        (["a"], "part 2 of derive(), ['a'], of type list"),
        (datetime(2026, 1, 2, tzinfo=UTC).replace(tzinfo=None), "has no time zone"),
        ("\ud800", "half a character"),
    ],
    ids=["float", "none", "decimal", "class", "list", "naive", "surrogate"],
)
def test_what_may_be_written_differently_next_time_is_refused_by_name(part: Any, says: str) -> None:
    with pytest.raises(KeyNotDerivable, match=re.escape(says)):
        derive("pay", part)


def test_no_parts_are_no_key() -> None:
    with pytest.raises(KeyNotDerivable, match="at least one part"):
        derive()
