"""What a tool for tests is given is checked where it is given: a test that tests nothing passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold
from onefold.errors import ConfigurationError
from onefold.testing.crashing import crash_at_commit
from onefold.testing.endpoint import assert_idempotent
from onefold.testing.memory_broker import AsyncMemoryBroker, MemoryBroker
from onefold.testing.outbox import drain
from onefold.testing.time_travel import make_older


@pytest.fixture
def once(sqlite_path: Path) -> Onefold:
    return Onefold(sqlite_path, source="tests")


def test_a_crash_at_an_edge_that_there_is_not_is_refused(once: Onefold) -> None:
    edge: Any = "befor"
    with pytest.raises(ConfigurationError, match="edge='befor' of a crash must be one of 'before', 'after'"):
        crash_at_commit(once, edge).__enter__()


def test_a_block_in_which_nothing_crashes_has_tested_nothing(once: Onefold) -> None:
    nothing = pytest.raises(AssertionError, match="no request with a key of this Onefold has come to its COMMIT")
    with nothing, crash_at_commit(once, "after"):
        pass


def test_what_the_test_itself_raises_in_the_block_is_what_it_is_told(once: Onefold) -> None:
    with pytest.raises(LookupError, match="of the test"), crash_at_commit(once, "after"):
        raise LookupError("of the test")


@pytest.mark.parametrize(
    "tool",
    [
        lambda given: crash_at_commit(given, "after").__enter__(),
        lambda given: assert_idempotent(None, "POST", "/", once=given),
        lambda given: drain(given),
        lambda given: make_older(given, 1),
    ],
    ids=["crash_at_commit", "assert_idempotent", "drain", "make_older"],
)
def test_what_is_no_onefold_is_refused(tool: Any) -> None:
    with pytest.raises(ConfigurationError, match="once='the app' is not an Onefold or AsyncOnefold"):
        tool("the app")


def test_a_count_that_cannot_be_called_is_refused(once: Onefold) -> None:
    count: Any = 3
    with pytest.raises(ConfigurationError, match="count=3 must be a function"):
        assert_idempotent(None, "POST", "/", once=once, count=count)


def test_a_memory_broker_of_the_other_colour_is_refused(once: Onefold, sqlite_path: Path) -> None:
    other: Any = AsyncOnefold(sqlite_path)
    with pytest.raises(ConfigurationError, match="is not an Onefold; MemoryBroker is for Onefold, AsyncMemoryBroker"):
        MemoryBroker(other)
    given: Any = once
    with pytest.raises(ConfigurationError, match="is not an AsyncOnefold; MemoryBroker is for Onefold"):
        AsyncMemoryBroker(given)
