"""A handler that swallows what aborted its transaction, and refuses: where that may be a serialization failure, the
refusal goes out and is not stored."""

from __future__ import annotations

import asyncpg
import psycopg
import pytest

from onefold._kernel.effects import Isolation
from tests.contract.backends import Backend
from tests.contract.plans import Desk, Plan
from tests.contract.rows import POSTGRES
from tests.contract.test_isolation import VENDOR_ERRORS, serve


def overtaken(backend: Backend) -> Plan:
    """A handler that catches the serialization failure itself, and has an answer for it."""

    async def act(desk: Desk) -> None:
        await desk.execute("SELECT item FROM orders")
        backend.sql("UPDATE orders SET item = 'overtaken' WHERE item = 'old'")
        with pytest.raises(VENDOR_ERRORS):
            await desk.execute("UPDATE orders SET item = 'mine' WHERE item = 'old'")

    return Plan(acts=act, status=409, body=b"sold to another")


@pytest.mark.contract("C44", backends=POSTGRES)
@pytest.mark.parametrize("framework", [False, True])
def test_c44_a_refusal_that_hides_a_serialization_failure_is_not_stored(
    backend: Backend, framework: bool, caplog: pytest.LogCaptureFixture
) -> None:
    serve(backend, framework=framework)
    answer = backend.post(key='"k"', plan=overtaken(backend))
    assert (answer.status, answer.body) == (409, b"sold to another")
    assert (backend.rows(), backend.records()) == (["overtaken"], [])
    assert "POST /orders answered 409 after it had swallowed an SQL error" in caplog.text
    retry = backend.post(key='"k"')
    assert (retry.status, retry.replayed) == (201, False)
    assert backend.rows() == ["book", "overtaken"]
    assert backend.post(key='"k"').replayed


@pytest.mark.contract("C44", backends=POSTGRES)
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_c44_a_refusal_whose_transaction_is_whole_is_stored(backend: Backend, isolation: Isolation) -> None:
    """A control, and the way out that the log names: the statement that may fail is in a savepoint."""
    backend.serve(settings={"isolation": isolation})

    async def act(desk: Desk) -> None:
        await desk.execute("SAVEPOINT mine")
        with pytest.raises((asyncpg.DivisionByZeroError, psycopg.errors.DivisionByZero)):
            await desk.execute("SELECT 1/0")
        await desk.execute("ROLLBACK TO SAVEPOINT mine")

    for again in (False, True):
        answer = backend.post(key='"k"', plan=Plan(acts=act, status=409, body=b"no"))
        assert (answer.status, answer.replayed) == (409, again)


@pytest.mark.contract("C15", backends=POSTGRES)
def test_c15_a_refusal_after_a_constraint_was_violated_is_stored(backend: Backend) -> None:
    """At READ COMMITTED what aborted the transaction cannot be a snapshot that was too old."""
    backend.serve()
    backend.sql("CREATE UNIQUE INDEX one ON orders (item)")
    backend.sql("INSERT INTO orders VALUES ('book')")

    async def act(desk: Desk) -> None:
        with pytest.raises((asyncpg.UniqueViolationError, psycopg.errors.UniqueViolation)):
            await desk.execute("INSERT INTO orders VALUES ('book')")

    for again in (False, True):
        answer = backend.post(key='"k"', plan=Plan(writes=False, acts=act, status=409, body=b"taken"))
        assert (answer.status, answer.replayed) == (409, again)
