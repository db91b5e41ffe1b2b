"""What a tool for tests is given is checked where it is given: a test that tests nothing passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from onefold import AsyncOnefold, Message, Onefold
from onefold._kernel.effects import Boundary, Statement
from onefold.errors import ConfigurationError, MessageInvalid
from onefold.testing.crashing import Crash, crash_at_commit
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


def test_a_block_inside_of_another_is_refused(once: Onefold) -> None:
    refused = pytest.raises(ConfigurationError, match="inside of another one")
    with refused, crash_at_commit(once, "after"), crash_at_commit(once, "before"):
        pass


def test_a_commit_that_failed_was_no_crash(once: Onefold) -> None:
    crash = Crash(once._database, "after")
    settling = (Statement("INSERT INTO onefold_record VALUES (1)"), Boundary.COMMIT)
    with pytest.raises(OSError, match="full"), crash.around(once._database, settling):
        raise OSError("the disk is full")
    assert not crash.happened


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


async def test_what_a_memory_broker_publishes_is_checked(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")

    @once.consumer("mailer", topic="order.placed")
    async def mail(message: Message) -> None:
        pass

    with pytest.raises(ConfigurationError, match=r"source='' must be 1 to 255"):
        AsyncMemoryBroker(once, source="")
    await once.migrate()
    broker: Any = AsyncMemoryBroker(once)
    for given, told in (
        ({"message_id": 3}, r"message_id=3 of a message on 'order.placed' must be a text, or None"),
        ({"message_id": ""}, r"message_id='' of a message"),
        ({"headers": "x"}, r"headers='x' of an event on 'order.placed' must be a mapping"),
        ({"headers": {1: "a"}}, r"has a header 1; names are"),
        ({"headers": {"a": 1}}, r"header 'a' of an event .* is 1; values are"),
    ):
        with pytest.raises(MessageInvalid, match=told):
            await broker.publish("order.placed", {}, **given)
    assert broker.published == []
    await once.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"headers": "x: y"}, r"headers='x: y' must be a mapping of names to texts"),
        ({"headers": {"idempotency-key": "k"}}, r"has a key: each part of assert_idempotent sends one of its own"),
        ({"path": None}, r"path=None must be a text, as '/orders' is, or a function that makes one"),
        ({"path": lambda: 7}, r"path=.*lambda.* returned 7, and must return a text"),
        ({"method": None}, r"method=None must be a text, as 'POST' is"),
    ],
)
def test_a_request_that_cannot_be_sent_is_refused(once: Onefold, given: dict[str, Any], told: str) -> None:
    tool: Any = assert_idempotent
    with TestClient(Starlette()) as client, pytest.raises(ConfigurationError, match=told):
        tool(**({"client": client, "method": "POST", "path": "/", "once": once} | given))


async def _count() -> int:
    return 0


def test_what_does_not_count_is_refused(once: Onefold) -> None:
    counts: Any = lambda: None  # noqa: E731
    with TestClient(Starlette()) as client:
        with pytest.raises(ConfigurationError, match="returned None, which is no whole number"):
            assert_idempotent(client, "POST", "/", once=once, count=counts)
        with pytest.raises(ConfigurationError, match="is an `async def`, and a TestClient awaits nothing"):
            assert_idempotent(client, "POST", "/", once=once, count=_count)
        with pytest.raises(ConfigurationError, match=r"json=.* is an `async def`: give a plain function that makes"):
            assert_idempotent(client, "POST", "/", once=once, json=_count)
        path: Any = _count
        with pytest.raises(ConfigurationError, match=r"path=.* is an `async def`: give a plain function that makes"):
            assert_idempotent(client, "POST", path, once=once)
