"""Retry-After in all its forms, on good clocks and on wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.retry_after import ABSURD_S, MONTHS, retry_after_ms_s, retry_after_s
from tests.policy.properties import planted, properties

Parse = Callable[[str, str | None, float], float | None]

WALL_S = datetime(1994, 11, 6, 8, 49, 0, tzinfo=UTC).timestamp()
DATE = "Sun, 06 Nov 1994 08:49:00 GMT"
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
LONG_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MOMENTS = st.integers(1, 7_000_000_000).map(lambda wall_s: datetime.fromtimestamp(wall_s, UTC))


def read(value: str, date: str | None = DATE, wall_s: float = WALL_S) -> float | None:
    return retry_after_s(value, date=date, wall_s=wall_s)


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        pytest.param("0", 0, id="now"),
        pytest.param("120", 120, id="two minutes"),
        pytest.param(" \t120 ", 120, id="with space around it"),
        pytest.param("00000000000000000000120", 120, id="with leading zeros"),
        pytest.param("0" * 5000 + "7", 7, id="with more zeros than Python likes to read"),
        pytest.param("86400", 86_400, id="a day, not shortened"),
        pytest.param("172830", 172_830, id="two days and a bit, not wrapped"),
        pytest.param("30.5", 30.5, id="with decimals"),
        pytest.param("7.", 7, id="with a point"),
        pytest.param("0.25", 0.25, id="less than a second"),
        pytest.param(str(ABSURD_S), ABSURD_S, id="the most that is believed"),
        pytest.param(str(ABSURD_S + 1), ABSURD_S, id="more than that"),
        pytest.param("1734000000000", ABSURD_S, id="a moment in place of a wait"),
        pytest.param("9" * 5000, ABSURD_S, id="more digits than Python likes to read"),
        pytest.param("9" * 5000 + "." + "9" * 5000, ABSURD_S, id="the same with decimals"),
        pytest.param("Sun, 06 Nov 2094 08:49:37 GMT", ABSURD_S, id="a date in a hundred years"),
        pytest.param("Sun, 06 Nov 1994 08:49:37 GMT", 37, id="IMF-fixdate"),
        pytest.param("Sunday, 06-Nov-94 08:49:37 GMT", 37, id="RFC 850"),
        pytest.param("Sun Nov  6 08:49:37 1994", 37, id="asctime"),
        pytest.param("Sun Nov 06 08:49:37 1994", 37, id="asctime with a day of two digits"),
        pytest.param("Tue, 08 Nov 1994 08:49:30 GMT", 172_830, id="a date in two days"),
        pytest.param("Sun, 06 Nov 1994 08:49:60 GMT", 60, id="a leap second"),
        pytest.param("Sun, 06 Nov 1994 08:49:00 GMT", 0, id="the very date of the response"),
    ],
)
def test_what_the_server_asks_for_is_read_in_full(value: str, wait_s: float) -> None:
    assert read(value) == wait_s


@pytest.mark.parametrize(
    "value",
    [
        "",
        "-1",
        "+5",
        ".5",
        "1.5.5",
        "1e3",
        "0x10",
        "5 s",
        "5, 10",
        "\u0665",  # a digit, but not one of HTTP's
        "\u00b2",
        "nan",
        "inf",
        "soon",
        "Sun, 06 Nov 1994 08:48:59 GMT",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "Fri, 31 Dec 9999 23:59:60 GMT",
        "Sun, 06 Nov 1994 08:49:37",
        "Sun, 06 Nov 1994 08:49:37 CET",
        "Sun, 06 Nov 1994 08:49:37 +0000",
        "sun, 06 nov 1994 08:49:37 gmt",
        "1994-11-06T08:49:37Z",
    ],
)
def test_what_is_malformed_or_past_is_ignored(value: str) -> None:
    assert read(value) is None


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [(None, None), ("", None), ("soon", None), ("-5", None), ("20", 0.02), ("20.5", 0.0205), ("9" * 400, ABSURD_S)],
)
def test_milliseconds_are_read_as_seconds(value: str | None, wait_s: float | None) -> None:
    assert retry_after_ms_s(value) == (None if wait_s is None else pytest.approx(wait_s))


def test_an_absent_header_asks_for_nothing() -> None:
    assert retry_after_s(None, date=DATE, wall_s=WALL_S) is None


@pytest.mark.parametrize("skew_s", [-86_400, -3600, 3600, 86_400])
def test_a_wrong_clock_of_the_client_changes_nothing(skew_s: float) -> None:
    assert read("Sun, 06 Nov 1994 08:49:37 GMT", DATE, WALL_S + skew_s) == 37


@pytest.mark.parametrize("date", [None, "", "yesterday", "Sun, 31 Feb 1994 08:49:00 GMT"])
def test_without_a_readable_date_the_clock_of_the_client_has_to_do(date: str | None) -> None:
    assert read("Sun, 06 Nov 1994 08:49:37 GMT", date, WALL_S + 7) == 30


def test_a_year_of_two_digits_is_the_closest_one_also_across_the_century() -> None:
    assert read("Saturday, 01-Jan-00 00:00:09 GMT", "Fri, 31 Dec 1999 23:59:59 GMT", 0.0) == 10
    assert read("Friday, 01-Jan-00 00:00:09 GMT", "Thu, 31 Dec 2099 23:59:59 GMT", 0.0) == 10
    assert read("Friday, 31-Dec-99 23:59:59 GMT", "Sat, 01 Jan 2000 00:00:00 GMT", 0.0) is None


@pytest.mark.parametrize("wall_s", [float("nan"), float("inf"), -1e18, 1e18])
def test_a_clock_that_shows_no_time_makes_a_date_unreadable_and_seconds_not(wall_s: float) -> None:
    assert read("Sun, 06 Nov 1994 08:49:37 GMT", None, wall_s) is None
    assert read("37", None, wall_s) == 37


def imf(moment: datetime) -> str:
    return f"{DAYS[moment.weekday()]}, {moment:%d} {MONTHS[moment.month - 1]} {moment:%Y %H:%M:%S} GMT"


def rfc850(moment: datetime) -> str:
    return f"{LONG_DAYS[moment.weekday()]}, {moment:%d}-{MONTHS[moment.month - 1]}-{moment:%y %H:%M:%S} GMT"


def asctime(moment: datetime) -> str:
    return f"{DAYS[moment.weekday()]} {MONTHS[moment.month - 1]} {moment.day:2} {moment:%H:%M:%S %Y}"


def check_dates(parse: Parse, how: settings = properties) -> None:
    @how
    @given(MOMENTS, st.integers(0, ABSURD_S), st.sampled_from([imf, rfc850, asctime]), st.sampled_from([imf, asctime]))
    def check(
        date: datetime, wait_s: int, write: Callable[[datetime], str], write_date: Callable[[datetime], str]
    ) -> None:
        assert parse(write(date + timedelta(seconds=wait_s)), write_date(date), 0.0) == wait_s

    check()


def check_any_text(parse: Parse, how: settings = properties) -> None:
    nearly = st.from_regex(r"[A-Z][a-z]{2,8},? ?[0-9 ]{1,2}[ -][A-Z][a-z]{2}[ -][0-9]{1,4} [0-9:]{5,9}( GMT)?")
    anything = st.text() | st.from_regex(r"[-+ ]?[0-9]{0,40}[ .]?") | nearly

    @how
    @given(anything, st.none() | anything, st.floats())
    def check(value: str, date: str | None, wall_s: float) -> None:
        wait_s = parse(value, date, wall_s)
        assert wait_s is None or 0 <= wait_s <= ABSURD_S

    check()


def test_a_date_is_measured_against_the_date_of_its_response_to_the_second() -> None:
    check_dates(read)


def test_no_text_raises_and_no_answer_is_negative_or_absurd() -> None:
    check_any_text(read)


def test_the_check_of_dates_finds_a_wait_that_wraps_at_a_day() -> None:
    def wraps(value: str, date: str | None, wall_s: float) -> float | None:
        wait_s = read(value, date, wall_s)
        return None if wait_s is None else timedelta(seconds=wait_s).seconds

    with pytest.raises(AssertionError):
        check_dates(wraps, planted)


def test_the_check_of_any_text_finds_a_parser_that_raises() -> None:
    with pytest.raises((ValueError, AssertionError)):
        check_any_text(lambda value, date, wall_s: float(value), planted)
