"""Patterns of topics: what they stand for, and what is none."""

from __future__ import annotations

import itertools
import re

import pytest

from onefold._kernel.topics import find_fault, is_pattern, matches, overlap, widest

#: Every topic of one to four tokens over three failed messages, and every pattern of one to three.
TOPICS = [".".join(tokens) for length in range(1, 5) for tokens in itertools.product("abc", repeat=length)]
PATTERNS = [
    pattern
    for length in range(1, 4)
    for tokens in itertools.product("ab*>", repeat=length)
    if find_fault(pattern := ".".join(tokens)) is None
]


def as_expression(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", "[^.]+").replace(">", ".+"))


STANDS_FOR = {pattern: {topic for topic in TOPICS if as_expression(pattern).fullmatch(topic)} for pattern in PATTERNS}


def test_a_pattern_stands_for_what_it_says() -> None:
    assert len(PATTERNS) > 40
    for pattern in PATTERNS:
        assert {topic for topic in TOPICS if matches(pattern, topic)} == STANDS_FOR[pattern], pattern


def test_of_two_patterns_it_is_known_which_is_wider_and_whether_they_meet() -> None:
    for one, other in itertools.product(PATTERNS, repeat=2):
        assert matches(one, other) is (STANDS_FOR[one] >= STANDS_FOR[other]), (one, other)
        assert overlap(one, other) is bool(STANDS_FOR[one] & STANDS_FOR[other]), (one, other)


def test_the_widest_of_several_stand_for_as_much() -> None:
    for several in itertools.islice(itertools.combinations(PATTERNS, 3), 0, None, 7):
        left = widest(several)
        assert set().union(*(STANDS_FOR[one] for one in left)) == set().union(*(STANDS_FOR[one] for one in several))
        assert not any(matches(one, other) for one, other in itertools.permutations(left, 2))
    assert widest(["a", "a", "b"]) == ["a", "b"]


@pytest.mark.parametrize(
    "topic", ["order.*", "*.placed", "order.*.paid", "order.>", "*", ">", "*.>", "or-der_1.*", "a..b"]
)
def test_what_may_be_subscribed_to(topic: str) -> None:
    assert find_fault(topic) is None
    assert is_pattern(topic) is (topic != "a..b")


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("a.>.b", "must be the last token"),
        (">.a", "must be the last token"),
        ("a*", "'a\\*' is none"),
        ("order.*placed", "whole token"),
        ("a>", "'a>' is neither"),
        ("a..*", "is empty"),
        (".*", "is empty"),
        ("*.", "is empty"),
        ("order.#.*", "'#' is neither"),
        ("a b.*", "'a b' is neither"),
        ("a." * 100 + "*", "at most 200"),
        ("", "a topic is 1 to 200 letters"),
        ("a b", "a topic is 1 to 200 letters"),
        (None, "a topic is 1 to 200 letters"),
    ],
)
def test_what_may_not_is_said_why(topic: object, why: str) -> None:
    assert re.search(why, find_fault(topic) or "")
