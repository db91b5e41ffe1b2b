"""Deadlines: read from a header, set for a block, only ever shortened, and seen by whatever is called from there."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import deadline
from onefold._kernel import deadlines
from onefold.clients import no_deadline
from onefold.errors import ConfigurationError
from tests.policy.properties import properties


@pytest.mark.parametrize(
    ("value", "granted_s"),
    [
        ("1500", 1.5),
        (b"1500", 1.5),
        ("0", 0.0),
        (" 20\t", 0.02),
        ("0250", 0.25),
        ("86400000", 86_400.0),
        ("86400001", None),
        (None, None),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("1.5", None),
        ("1e3", None),
        ("1 000", None),
        ("1_000", None),
        ("5s", None),
        ("١٢", None),
        ("²", None),
        (b"\xb2", None),
        ("9" * 5000, None),
        ("nan", None),
        ("10, 20", None),
    ],
)
def test_a_header_grants_whole_milliseconds_or_nothing(value: str | bytes | None, granted_s: float | None) -> None:
    assert deadlines.parse_s(value) == granted_s


@properties
@given(st.text(max_size=12) | st.binary(max_size=12))
def test_no_header_raises_or_grants_more_than_a_day(value: str | bytes) -> None:
    granted_s = deadlines.parse_s(value)
    assert granted_s is None or 0 <= granted_s <= deadlines.LONGEST_S


@pytest.mark.parametrize(
    ("left_s", "header"),
    [(1.5, "1500"), (0.3, "300"), (0.0004, "1"), (0.0, "0"), (-3.0, "0"), (1e9, "86400000")],
)
def test_what_is_left_is_sent_rounded_up(left_s: float, header: str) -> None:
    assert deadlines.format_ms(left_s) == header


@properties
@given(st.integers(0, 86_400_000))
def test_a_header_that_is_written_is_read_as_the_same(ms: int) -> None:
    assert deadlines.parse_s(deadlines.format_ms(ms / 1000)) == ms / 1000


def test_there_is_no_deadline_until_one_is_set() -> None:
    assert deadlines.current() is None
    assert deadlines.left_s() is None
    with deadline(5) as at:
        assert deadlines.current() == at
        assert 0 < (deadlines.left_s() or 0) <= 5
        assert at <= time.monotonic() + 5
    assert deadlines.current() is None


def test_a_deadline_inside_another_only_shortens() -> None:
    with deadline(5) as outer:
        with deadline(60) as longer:
            assert longer == outer
        with deadline(1) as shorter:
            assert shorter < outer
        assert deadlines.current() == outer


def test_a_deadline_that_is_lifted_is_lifted_everywhere_and_those_inside_it_stay() -> None:
    granted = deadlines.Granted(time.monotonic() + 1)
    token = deadlines.begin(granted)
    elsewhere = contextvars.copy_context()
    with deadline(60):
        own = deadlines.current()
        assert own == granted.at
        granted.lift()
        assert (deadlines.left_s() or 0) > 50
    assert deadlines.current() is None
    assert elsewhere.run(deadlines.current) is None
    deadlines.end(token)


def test_work_of_its_own_has_no_deadline() -> None:
    with deadline(5) as at:
        with no_deadline():
            assert deadlines.current() is None
            with deadline(60) as own:
                assert own > at
        assert deadlines.current() == at


def test_what_is_over_has_nothing_left_and_not_less() -> None:
    with deadline(0):
        assert deadlines.left_s() == 0.0


@pytest.mark.parametrize("seconds", [-1, 86_401, float("nan"), float("inf")])
def test_a_deadline_out_of_range_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="choose 0 to 86400 seconds"), deadline(seconds):
        pass


async def test_tasks_and_threads_that_copy_the_context_see_it_and_others_do_not() -> None:
    async def seen() -> float | None:
        return deadlines.current()

    with deadline(5) as at:
        assert await asyncio.create_task(seen()) == at
        assert await asyncio.to_thread(deadlines.current) == at
        found: list[float | None] = []
        for target in (contextvars.copy_context().run, lambda work: work()):
            thread = threading.Thread(target=target, args=(lambda: found.append(deadlines.current()),))
            thread.start()
            thread.join()
        assert found == [at, None]
