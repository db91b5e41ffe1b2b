"""Answers in memory: bounded in number, in bytes and in time, and told the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._idempotency.cache.memory_cache import ENTRY_BYTES, MemoryAnswers
from onefold._idempotency.model import Record
from onefold.caches import MemoryCache
from onefold.errors import ConfigurationError

DAY_S = 86_400.0


def record(number: int, body: bytes = b"") -> Record:
    return Record(number.to_bytes(16, "big"), b"print", "POST /payments", 2, 201, b"", body)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def opened(**settings: Any) -> tuple[MemoryAnswers, Clock, Clock]:
    monotonic, wall = Clock(), Clock()
    answers = MemoryAnswers(MemoryCache(**settings), monotonic=monotonic, wall=lambda: round(wall() * 1000))
    return answers, monotonic, wall


def outcomes(answers: MemoryAnswers, *numbers: int) -> list[str]:
    return [answers.look(record(number).digest, None).outcome for number in numbers]


def test_the_least_recently_used_goes_first() -> None:
    answers, _, _ = opened(entries_max=3)
    for number in (1, 2, 3):
        answers.store(record(number), 1000.0, DAY_S)
    assert outcomes(answers, 1) == ["hit"]
    answers.store(record(4), 1000.0, DAY_S)
    assert outcomes(answers, 1, 2, 3, 4) == ["hit", "miss", "hit", "hit"]
    assert answers.size == 3 * ENTRY_BYTES


def test_bytes_are_bounded_whatever_is_stored_over_and_over() -> None:
    answers, _, _ = opened(bytes_max=20_000, answer_bytes_max=5_000)
    for number in range(200):
        assert answers.store(record(number % 7, b"x" * (number * 37 % 5_000)), 1000.0, DAY_S) == "stored"
        assert answers.look(record(1000 + number).digest, 60.0).outcome == "miss"  # and marks it
        assert answers.size <= 20_000
    answers.forget([record(number).digest for number in (*range(7), *range(1000, 1200))])
    assert (len(answers), answers.size) == (0, 0)


def test_an_answer_that_is_too_large_leaves_nothing_of_what_was_there() -> None:
    answers, _, _ = opened(answer_bytes_max=100)
    answers.look(record(1).digest, 60.0)
    assert answers.store(record(1, b"x" * 101), 1000.0, DAY_S) == "too_large"
    assert (outcomes(answers, 1), answers.size) == (["miss"], 0)


@pytest.mark.parametrize("which", ["monotonic", "wall"])
@pytest.mark.parametrize(("ttl_s", "left_s"), [(60.0, DAY_S), (DAY_S, 60.0)])
def test_it_is_forgotten_after_its_time_by_either_clock(which: str, ttl_s: float, left_s: float) -> None:
    """One jumps when it is set, the other stands still while the machine is suspended."""
    answers, monotonic, wall = opened(ttl_s=ttl_s)
    answers.store(record(1), 1000.0, left_s)
    clock = {"monotonic": monotonic, "wall": wall}[which]
    clock.now += 59.9
    assert outcomes(answers, 1) == ["hit"]
    clock.now += 0.1
    assert outcomes(answers, 1) == ["miss"]
    assert len(answers) == 0


def test_its_time_counts_from_before_it_was_seen_in_the_database() -> None:
    """A process that stood still between COMMIT and here stores nothing that was erased long ago."""
    answers, monotonic, _ = opened(ttl_s=60.0)
    monotonic.now += 61
    assert answers.store(record(1), 1000.0, DAY_S) == "too_late"
    assert outcomes(answers, 1) == ["miss"]


def test_what_has_expired_goes_without_being_asked_for() -> None:
    answers, monotonic, _ = opened(ttl_s=60.0)
    for number in range(10):
        answers.store(record(number), monotonic.now, DAY_S)
    monotonic.now += 61
    for number in range(10, 20):
        answers.store(record(number), monotonic.now, DAY_S)
    assert len(answers) == 10


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("entries_max", 0),
        ("bytes_max", 1),
        ("ttl_s", 0),
        ("ttl_s", "60"),
        ("answer_bytes_max", 1 << 40),
        ("entries", 5),
    ],
)
def test_wrong_settings_are_refused_where_they_are_written(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        MemoryCache(**{name: value})


@pytest.mark.parametrize("made", [AsyncOnefold, Onefold])
@pytest.mark.parametrize("wrong", [MemoryCache, "redis://127.0.0.1", {}, 60, Path("x")])
def test_what_is_no_cache_is_refused_with_the_way_out(made: Any, wrong: object, sqlite_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cache=.* is not an answer cache: give one of onefold\.caches"):
        made(sqlite_path, principal=single_principal, cache=wrong)


def test_two_applications_with_the_same_settings_do_not_share_their_answers(sqlite_path: Path, tmp_path: Path) -> None:
    cache = MemoryCache()
    one = Onefold(sqlite_path, principal=single_principal, cache=cache)
    other = Onefold(tmp_path / "other.db", principal=single_principal, cache=cache)
    assert one._layer.cached is not None
    assert other._layer.cached is not None
    assert one._layer.cached.cache is not other._layer.cached.cache
    for once in (one, other):
        once.close()
