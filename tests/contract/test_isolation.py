"""What cannot be serialised, at COMMIT or in a statement of the handler's own, is worth a retry and is never stored."""

from __future__ import annotations

import asyncpg
import psycopg
import pytest

from tests.contract.frameworks import Rescued
from tests.contract.plans import Desk, Plan
from tests.contract.rows import POSTGRES
from tests.contract.wire import Answer
from tests.contract.worlds import World

VENDOR_ERRORS = (asyncpg.SerializationError, psycopg.errors.SerializationFailure)

REFUSAL = Plan(status=409, body=b"sold to another")


def overtaken(world: World, *, rescued: Plan | None = None) -> Plan:
    """A handler that changes what another has changed since it looked; it may have a domain error for that."""

    async def act(desk: Desk) -> None:
        await desk.execute("SELECT item FROM orders")
        world.sql("UPDATE orders SET item = 'overtaken' WHERE item = 'old'")
        try:
            await desk.execute("UPDATE orders SET item = 'mine' WHERE item = 'old'")
        except VENDOR_ERRORS as error:
            if rescued is None:
                raise
            raise Rescued(rescued) from error

    return Plan(acts=act)


def serve(world: World, *, framework: bool) -> None:
    world.serve(settings={"isolation": "repeatable read"}, framework=framework)
    world.sql("INSERT INTO orders VALUES ('old')")


def check(world: World, answer: Answer) -> None:
    assert (answer.status, answer.problem, answer.json["retryable"]) == (503, "store-busy", True)
    assert (world.rows(), world.records()) == (["overtaken"], [])
    retry = world.post(key='"k"')
    assert (retry.status, retry.replayed) == (201, False)
    assert world.rows() == ["book", "overtaken"]


@pytest.mark.contract("C44", worlds=POSTGRES)
@pytest.mark.parametrize("framework", [False, True])
def test_c44_a_statement_that_cannot_be_serialised_is_a_503_that_may_be_retried(world: World, framework: bool) -> None:
    serve(world, framework=framework)
    check(world, world.post(key='"k"', plan=overtaken(world)))


@pytest.mark.contract("C44", worlds=POSTGRES)
@pytest.mark.parametrize("status", [200, 303, 409, 500])
def test_c44_it_is_so_whatever_an_exception_handler_makes_of_it(world: World, status: int) -> None:
    serve(world, framework=True)
    check(world, world.post(key='"k"', plan=overtaken(world, rescued=Plan(status=status, body=b"rescued"))))


@pytest.mark.contract("C44", worlds=POSTGRES)
def test_c44_without_a_key_it_is_the_same(world: World) -> None:
    serve(world, framework=True)
    answer = world.post(key=None, plan=overtaken(world, rescued=REFUSAL))
    assert (answer.status, answer.problem, answer.json["retryable"]) == (503, "store-busy", True)
    assert world.rows() == ["overtaken"]


@pytest.mark.contract("C44", worlds=POSTGRES)
def test_c44_other_errors_are_the_handlers_own(world: World) -> None:
    serve(world, framework=True)
    for _ in range(2):
        answer = world.post(key='"k"', plan=Plan(rescued=REFUSAL))
        assert (answer.status, answer.body) == (409, b"sold to another")
    assert answer.replayed
