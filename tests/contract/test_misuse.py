"""Handlers that break their own transaction, and limiters that shed load: neither may break the promise."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onefold.policies import Quota
from tests.contract.backends import Backend
from tests.contract.plans import Desk, Plan, RequestGuard
from tests.contract.rows import POSTGRES, SQLITE, BackendName


async def swallow_an_error(desk: Desk) -> None:
    with contextlib.suppress(Exception):
        await desk.execute("INSERT INTO nowhere (item) VALUES (:1)", "x")


@pytest.mark.contract("C35")
def test_c35_a_swallowed_sql_error_never_passes_for_success(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    answer = backend.post(key='"k"', plan=Plan(acts=swallow_an_error))
    if backend.is_postgres:
        assert (answer.status, answer.problem) == (500, "handler-broken")
        assert "swallowed an SQL error" in answer.json["detail"]
        assert "swallowed an SQL error" in caplog.text
        assert (backend.rows(), backend.records()) == ([], [])
        assert backend.post(key='"k"').status == 201
    else:  # SQLite undoes the failed statement alone: the transaction is whole, and so is its answer
        assert answer.status == 201
        assert backend.post(key='"k"').replayed
    assert backend.rows() == ["book"]


@pytest.mark.contract("C35", backends=POSTGRES)
def test_c35_a_swallowed_sql_error_behind_a_refusal_is_harmless(backend: Backend) -> None:
    refused = backend.post(key='"k"', plan=Plan(status=402, acts=swallow_an_error))
    assert refused.status == 402
    assert backend.post(key='"k"').replayed
    assert backend.rows() == []


@pytest.mark.contract("C35")
def test_c35_a_request_without_a_key_may_not_swallow_an_sql_error_either(backend: Backend) -> None:
    answer = backend.post(key=None, plan=Plan(acts=swallow_an_error))
    assert (answer.status, backend.rows()) == ((500, []) if backend.is_postgres else (201, ["book"]))


Act = Callable[[Any], Any]


def on_the_connection(work: Act) -> Callable[[Desk], Awaitable[None]]:
    """Do something with the driver's own connection, on whatever thread it lives."""

    async def act(desk: Desk) -> None:
        connection = desk.connection
        if desk.backend == "asgi-sqlite":
            await connection.run(work)
        else:
            await desk.finished(work(connection))

    return act


def with_block(connection: Any) -> None:
    with connection:
        connection.execute("INSERT INTO orders (item) VALUES ('more')")


SQL_SPELLINGS = ("COMMIT", "ROLLBACK", "end", "commit /* now */", "COMMIT TRANSACTION")


def in_sql(sql: str) -> Act:
    return lambda connection: connection.execute(sql)


SQLITE_ENDINGS: dict[str, Act] = {
    **{sql: in_sql(sql) for sql in SQL_SPELLINGS},
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "executescript()": lambda connection: connection.executescript("SELECT 1;"),
    "with connection": with_block,
}
ASYNCPG_ENDINGS: dict[str, Act] = {
    **{sql: in_sql(sql) for sql in (*SQL_SPELLINGS, "ABORT", "COMMIT AND CHAIN", "ROLLBACK AND CHAIN")},
    "COMMIT; BEGIN": in_sql("COMMIT; BEGIN"),
    "COMMIT; BEGIN; SAVEPOINT onefold": in_sql("COMMIT; BEGIN; SAVEPOINT onefold"),
    "ROLLBACK; BEGIN": in_sql("ROLLBACK; BEGIN"),
}
PSYCOPG_ENDINGS: dict[str, Act] = {
    **ASYNCPG_ENDINGS,
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
}
ENDINGS: dict[BackendName, dict[str, Act]] = {
    "asgi-sqlite": SQLITE_ENDINGS,
    "wsgi-sqlite": SQLITE_ENDINGS,
    "asgi-postgres": ASYNCPG_ENDINGS,
    "wsgi-postgres": PSYCOPG_ENDINGS,
}


def swallowing(act: Callable[[Desk], Awaitable[None]]) -> Callable[[Desk], Awaitable[None]]:
    async def quiet(desk: Desk) -> None:
        with contextlib.suppress(Exception):
            await act(desk)

    return quiet


@pytest.mark.contract("C35")
@pytest.mark.parametrize("status", [201, 402])
def test_c35_a_handler_that_ends_the_transaction_by_itself_is_told_so(backend: Backend, status: int) -> None:
    for number, (name, ending) in enumerate(ENDINGS[backend.name].items()):
        key = f'"{number}"'
        acts = swallowing(on_the_connection(ending))
        answer = backend.post(key=key, plan=Plan(status=status, acts=acts))
        if backend.name in SQLITE and status == 402:
            continue  # SQLite forbids the ending itself: a refusal that is rolled back anyway is whole
        assert (answer.status, answer.problem) == (500, "handler-broken"), name
        assert "the handler" in answer.json["detail"], name
        assert not backend.records(), name
        backend.sql("DELETE FROM orders")
        retry = backend.post(key=key)
        assert (retry.status, retry.replayed) == (201, False), name
        backend.sql("DELETE FROM onefold_record")


@pytest.mark.contract("C35")
def test_c35_a_handler_that_ends_the_transaction_and_then_fails_leaves_its_key_free(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    for number, (name, ending) in enumerate(ENDINGS[backend.name].items()):
        key = f'"{number}"'
        acts = on_the_connection(ending)
        caplog.clear()
        assert backend.post(key=key, plan=Plan(status=500, acts=acts)).status == 500, name
        assert not backend.records(), name
        if backend.is_postgres:  # SQLite forbids the ending itself: nothing can be left
            assert "its retry runs again: the handler committed" in caplog.text, name
        retry = backend.post(key=key)
        assert (retry.status, retry.replayed) == (201, False), name
        backend.sql("DELETE FROM onefold_record")


@pytest.mark.contract("C35", backends=POSTGRES)
@pytest.mark.parametrize("key", ['"k"', None])
def test_c35_so_is_one_that_refuses_for_now(backend: Backend, key: str | None) -> None:
    """What is answered 429 is not stored, and its retry runs again: over rows that are there."""
    for name, ending in ENDINGS[backend.name].items():
        answer = backend.post(key=key, plan=Plan(status=429, acts=swallowing(on_the_connection(ending))))
        assert (answer.status, answer.problem) == (500, "handler-broken"), name


@pytest.mark.contract("C35", backends=POSTGRES)
def test_c35_a_handler_without_a_key_that_ends_the_transaction_and_then_fails_is_logged(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    for name, ending in ENDINGS[backend.name].items():
        caplog.clear()
        assert backend.post(key=None, plan=Plan(status=500, acts=on_the_connection(ending))).status == 500, name
        assert "its retry runs again: the handler committed" in caplog.text, name


@pytest.mark.contract("C35", backends=POSTGRES)
@pytest.mark.parametrize("status", [201, 402])
def test_c35_a_handler_that_resets_all_settings_is_told_so(backend: Backend, status: int) -> None:
    """Without a key they are all that tells its transaction from another."""
    resets = on_the_connection(in_sql("RESET ALL"))
    answer = backend.post(key=None, plan=Plan(status=status, acts=resets))
    assert (answer.status, answer.problem) == (500, "handler-broken")
    assert "RESET ALL" in answer.json["detail"]
    assert backend.rows() == []
    assert backend.post(key='"k"', plan=Plan(status=status, acts=resets)).status == status
    assert backend.post(key='"k"').replayed


@pytest.mark.contract("C35")
@pytest.mark.parametrize("status", [201, 402])
def test_c35_a_handler_without_a_key_that_ends_the_transaction_by_itself_is_told_so(
    backend: Backend, status: int
) -> None:
    for name, ending in ENDINGS[backend.name].items():
        answer = backend.post(key=None, plan=Plan(status=status, acts=swallowing(on_the_connection(ending))))
        if backend.name in SQLITE and status == 402:
            continue  # SQLite forbids the ending itself
        assert (answer.status, answer.problem) == (500, "handler-broken"), name
        assert "the handler" in answer.json["detail"], name
        backend.sql("DELETE FROM orders")
        assert (backend.post(key=None).status, backend.rows()) == (201, ["book"]), name
        backend.sql("DELETE FROM orders")


@pytest.mark.contract("C35", backends=SQLITE)
def test_c35_on_sqlite_a_commit_by_the_handler_does_not_commit(backend: Backend) -> None:
    for name, ending in SQLITE_ENDINGS.items():
        backend.post(key='"k"', plan=Plan(acts=swallowing(on_the_connection(ending))))
        assert backend.rows() == [], name


@pytest.mark.contract("C35")
def test_c35_a_handler_may_nest_transactions_of_its_own(backend: Backend) -> None:
    async def nested(desk: Desk) -> None:
        if backend.name == "asgi-postgres":
            async with desk.connection.transaction():
                await desk.execute("INSERT INTO orders (item) VALUES (:1)", "inner")
        elif backend.name == "wsgi-postgres":
            with desk.connection.transaction():
                await desk.execute("INSERT INTO orders (item) VALUES (:1)", "inner")
        else:
            await desk.execute("SAVEPOINT mine")
            await desk.execute("INSERT INTO orders (item) VALUES (:1)", "inner")
            await desk.execute("RELEASE mine")

    assert backend.post(key='"k"', plan=Plan(acts=nested)).status == 201
    assert backend.rows() == ["book", "inner"]


@pytest.mark.contract("C35")
def test_c35_in_development_a_success_that_never_touched_its_transaction_is_told_so(backend: Backend) -> None:
    backend.serve(development=True)
    answer = backend.post(key='"k"', plan=Plan(writes=False))
    assert (answer.status, answer.problem) == (500, "handler-broken")
    assert "without using its transaction" in answer.json["detail"]
    assert not backend.records()
    assert backend.post(key='"k"').status == 201
    assert backend.post(key='"refused"', plan=Plan(status=404, writes=False)).status == 404
    backend.serve(development=True, settings={"writes": False})
    assert backend.post(key='"l"', plan=Plan(writes=False)).status == 201


@pytest.mark.contract("C36")
def test_c36_replays_are_served_while_new_work_is_shed(backend: Backend) -> None:
    backend.post(key='"done"', plan=Plan(body=b"served before"))
    backend.shedding = True
    assert backend.post(key='"new"').status == 503
    replay = backend.post(key='"done"')
    assert (replay.status, replay.body, replay.replayed) == (201, b"served before", True)
    assert backend.post(key='"done"', body=b"other").status == 422
    backend.shedding = False
    later = backend.post(key='"new"')
    assert (later.status, later.replayed) == (201, False)


@pytest.mark.contract("C36")
@pytest.mark.parametrize("key", ['"new"', None])
def test_c36_replays_are_served_while_a_principal_has_all_it_may_have(backend: Backend, key: str | None) -> None:
    backend.serve(settings={"quota": Quota(in_flight=1)})
    backend.post(key='"done"', plan=Plan(writes=False, body=b"served before"))
    guard = RequestGuard()
    running = backend.start(
        key='"slow"', plan=Plan(writes=False, guard=guard)
    )  # SQLite: no lock, while it stands still
    guard.await_arrival()
    refused = backend.post(key=key)
    assert (refused.status, refused.problem, refused.json["retryable"]) == (429, "too-many-requests", True)
    assert (backend.rows(), len(backend.records())) == ([], 1)
    replay = backend.post(key='"done"')
    assert (replay.status, replay.body, replay.replayed) == (201, b"served before", True)
    assert backend.post(key=key, account="umbrella").status == 201
    guard.open()
    assert running.answer().status == 201
    later = backend.post(key=key)
    assert (later.status, later.replayed) == (201, False)
