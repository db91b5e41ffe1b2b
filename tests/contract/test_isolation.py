"""What cannot be serialised, at COMMIT or in a statement of the handler's own, is worth a retry and is never stored."""

from __future__ import annotations

import asyncpg
import psycopg
import pytest

from tests.contract.backends import Backend
from tests.contract.frameworks import Rescued
from tests.contract.plans import Desk, Plan
from tests.contract.rows import POSTGRES
from tests.contract.wire import Answer

VENDOR_ERRORS = (asyncpg.SerializationError, psycopg.errors.SerializationFailure)

REFUSAL = Plan(status=409, body=b"sold to another")


def overtaken(backend: Backend, *, rescued: Plan | None = None) -> Plan:
    """A handler that changes what another has changed since it looked; it may have a domain error for that."""

    async def act(desk: Desk) -> None:
        await desk.execute("SELECT item FROM orders")
        backend.sql("UPDATE orders SET item = 'overtaken' WHERE item = 'old'")
        try:
            await desk.execute("UPDATE orders SET item = 'mine' WHERE item = 'old'")
        except VENDOR_ERRORS as error:
            if rescued is None:
                raise
            raise Rescued(rescued) from error

    return Plan(acts=act)


def serve(backend: Backend, *, framework: bool) -> None:
    backend.serve(settings={"isolation": "repeatable read"}, framework=framework)
    backend.sql("INSERT INTO orders VALUES ('old')")


def check(backend: Backend, answer: Answer) -> None:
    assert (answer.status, answer.problem, answer.json["retryable"]) == (503, "store-busy", True)
    assert (backend.rows(), backend.records()) == (["overtaken"], [])
    retry = backend.post(key='"k"')
    assert (retry.status, retry.replayed) == (201, False)
    assert backend.rows() == ["book", "overtaken"]


@pytest.mark.contract("C44", backends=POSTGRES)
@pytest.mark.parametrize("framework", [False, True])
def test_c44_a_statement_that_cannot_be_serialised_is_a_503_that_may_be_retried(
    backend: Backend, framework: bool
) -> None:
    serve(backend, framework=framework)
    check(backend, backend.post(key='"k"', plan=overtaken(backend)))


@pytest.mark.contract("C44", backends=POSTGRES)
@pytest.mark.parametrize("status", [200, 303, 409, 500])
def test_c44_it_is_so_whatever_an_exception_handler_makes_of_it(backend: Backend, status: int) -> None:
    serve(backend, framework=True)
    check(backend, backend.post(key='"k"', plan=overtaken(backend, rescued=Plan(status=status, body=b"rescued"))))


@pytest.mark.contract("C44", backends=POSTGRES)
def test_c44_without_a_key_it_is_the_same(backend: Backend) -> None:
    serve(backend, framework=True)
    answer = backend.post(key=None, plan=overtaken(backend, rescued=REFUSAL))
    assert (answer.status, answer.problem, answer.json["retryable"]) == (503, "store-busy", True)
    assert backend.rows() == ["overtaken"]


@pytest.mark.contract("C44", backends=POSTGRES)
def test_c44_other_errors_are_the_handlers_own(backend: Backend) -> None:
    serve(backend, framework=True)
    for _ in range(2):
        answer = backend.post(key='"k"', plan=Plan(rescued=REFUSAL))
        assert (answer.status, answer.body) == (409, b"sold to another")
    assert answer.replayed
