"""Exceptions that are not worth another attempt: their message is a dead letter at once, by class."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy.exc

from onefold._inbox.handling import Inbox
from onefold._inbox.permanent_failures import check_classes, is_final
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError, OnefoldError, StoreBusy
from onefold.telemetry import DeadLettered, Failed
from tests.inbox.backends import Backend, message


class CardRefused(ValueError):
    """Of the application."""


def failing(backend: Backend, error: Exception, **settings: Any) -> Inbox:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        backend.calls.append(given.id)
        await backend.write(tx, given.id)
        raise error

    return backend.inbox(handler, **settings)


async def test_an_exception_that_was_named_makes_a_dead_letter_at_once(backend: Backend) -> None:
    inbox = failing(backend, CardRefused("no such card"), dead_letter_on=(KeyError, ValueError))
    event = await backend.deliver(inbox, message())
    assert event == DeadLettered("billing", "order.placed", "CardRefused: no such card", "m1")
    failed_message = (await backend.failed_messages())["m1"]
    assert (failed_message.state, failed_message.failed, failed_message.reason) == (
        "dead",
        1,
        "CardRefused: no such card",
    )
    assert [failure["error"] for failure in failed_message.history] == ["CardRefused: no such card"]
    await backend.hours_pass()
    assert (await backend.run_due(inbox), backend.calls, await backend.effects()) == ([], ["m1"], [])


async def test_any_other_exception_is_tried_again(backend: Backend) -> None:
    inbox = failing(backend, RuntimeError("busy"), dead_letter_on=(ValueError,))
    assert isinstance(await backend.deliver(inbox, message()), Failed)


async def test_a_group_in_which_one_was_named_is_not_tried_again(backend: Backend) -> None:
    async def refuse() -> None:
        raise CardRefused("no")

    async def handler(given: Message) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(refuse())

    inbox = backend.inbox(handler, dead_letter_on=(ValueError,))
    assert isinstance(await backend.deliver(inbox, message()), DeadLettered)


async def test_it_can_be_named_when_it_has_failed_otherwise_before(backend: Backend) -> None:
    await backend.deliver(failing(backend, RuntimeError("busy")), message())
    await backend.hours_pass()
    [event] = await backend.run_due(failing(backend, CardRefused("no"), dead_letter_on=(ValueError,)))
    assert isinstance(event, DeadLettered)
    assert (await backend.failed_messages())["m1"].failed == 2


async def test_one_of_a_batch_is_dead_and_the_others_are_handled(backend: Backend) -> None:
    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        for one in given:
            await backend.write(tx, one.id)
            if one.id == "bad":
                raise CardRefused("no")

    inbox = backend.inbox(handler, batch=10, dead_letter_on=(ValueError,))
    for name in ("m1", "bad", "m2"):
        await backend.deliver(inbox, message(name))
    assert await backend.effects() == ["m1", "m2"]
    assert {name: failed_message.state for name, failed_message in (await backend.failed_messages()).items()} == {
        "bad": "dead"
    }


@pytest.mark.parametrize("given", ["ValueError", (ValueError, "KeyError"), (ValueError("no"),), (KeyboardInterrupt,)])
async def test_what_is_no_class_of_exceptions_is_refused_at_definition(backend: Backend, given: Any) -> None:
    wrong = given if isinstance(given, str) else given[-1]
    with pytest.raises(
        ConfigurationError, match=r"'billing' has dead_letter_on=.* is not a class of except"
    ) as refused:
        backend.consumer(dead_letter_on=given)
    assert f"and {wrong!r} is not a class" in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        Exception,
        OnefoldError,
        StoreBusy,
        sqlite3.OperationalError,
        psycopg.OperationalError,
        psycopg.errors.AdminShutdown,
        psycopg_pool.PoolTimeout,
        asyncpg.InterfaceError,
        asyncpg.PostgresConnectionError,
        asyncpg.SerializationError,
        sqlalchemy.exc.OperationalError,
        sqlalchemy.exc.InterfaceError,
    ],
)
def test_what_an_outage_would_raise_is_refused_at_definition(given: type[Exception]) -> None:
    with pytest.raises(ConfigurationError, match=r"a busy or lost\s+database raises.*attempts=1"):
        check_classes("billing", (given,))


REFUSALS = (sqlite3.IntegrityError, psycopg.IntegrityError, psycopg.errors.CheckViolation, psycopg.DataError)


@pytest.mark.parametrize(
    "given", [*REFUSALS, asyncpg.DataError, asyncpg.UniqueViolationError, sqlalchemy.exc.IntegrityError, psycopg.Error]
)
def test_what_a_database_refuses_may_be_named(given: type[Exception]) -> None:
    assert check_classes("billing", (given,)) == (given,)


class Invalidated(sqlalchemy.exc.DBAPIError):
    """As SQLAlchemy says it of a connection that was lost."""

    def __init__(self) -> None:
        super().__init__("SELECT 1", (), Exception("server closed the connection"), connection_invalidated=True)


@pytest.mark.parametrize(
    ("error", "is_dead"),
    [
        (psycopg.OperationalError("the connection is lost"), False),
        (psycopg.errors.AdminShutdown("terminating connection"), False),
        (ExceptionGroup("of a task group", [psycopg.OperationalError("the connection is lost")]), False),
        (psycopg.errors.CheckViolation("amount"), True),
        (ExceptionGroup("both", [psycopg.OperationalError("lost"), psycopg.errors.CheckViolation("amount")]), True),
        (asyncpg.ConnectionDoesNotExistError("connection was closed"), False),
        (asyncpg.CheckViolationError("amount"), True),
        (sqlite3.OperationalError("database is locked"), False),
        (sqlite3.IntegrityError("CHECK constraint failed: amount"), True),
        (sqlalchemy.exc.DBAPIError("SELECT 1", (), psycopg.OperationalError("lost")), False),
        (sqlalchemy.exc.DBAPIError("SELECT 1", (), psycopg.errors.CheckViolation("amount")), True),
        (Invalidated(), False),
    ],
    ids=repr,
)
def test_no_message_dies_of_a_lost_connection_because_all_errors_of_a_driver_were_named(
    error: Exception, is_dead: bool
) -> None:
    named = (psycopg.Error, asyncpg.PostgresError, sqlite3.Error, sqlalchemy.exc.SQLAlchemyError)
    assert is_final(error, check_classes("billing", named)) is is_dead


async def test_one_class_needs_no_tuple(backend: Backend) -> None:
    assert backend.consumer(dead_letter_on=ValueError).dead_letter_on == (ValueError,)
