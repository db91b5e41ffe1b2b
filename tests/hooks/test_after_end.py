"""`tx.after_commit` and `tx.after_rollback`: after the real end, in every kind of transaction, on every driver."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import BackgroundTasks, FastAPI, HTTPException

from onefold import AsyncOnefold, Message, Onefold, Transaction
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.errors import ConnectionLost, OnefoldError, ProgrammerError
from onefold.telemetry import DeadLettered, Handled
from tests.db.drivers import POSTGRES, POSTGRES_ASYNC, SQLITE, SQLITE_ASYNC
from tests.http.stages import account_of, calling
from tests.inbox.backends import Backend, message
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until


class Refused(Exception):
    """A part of the handler that fails."""


@pytest.fixture(params=[*SQLITE_ASYNC, *POSTGRES_ASYNC])
async def once(request: pytest.FixtureRequest) -> AsyncIterator[AsyncOnefold]:
    kind = SQLITE_ASYNC if request.param in SQLITE_ASYNC else POSTGRES_ASYNC
    address = str(request.getfixturevalue("sqlite_path" if kind is SQLITE_ASYNC else "postgres_dsn"))
    async with kind[request.param](address, 10.0) as subject:
        once = AsyncOnefold(subject.database, principal=account_of)
        await once.migrate()
        yield once


@pytest.fixture(params=[*SQLITE, *POSTGRES])
def sync_once(request: pytest.FixtureRequest) -> Iterator[Onefold]:
    kind = SQLITE if request.param in SQLITE else POSTGRES
    address = str(request.getfixturevalue("sqlite_path" if kind is SQLITE else "postgres_dsn"))
    with kind[request.param](address, 10.0) as subject:
        once = Onefold(subject.database, principal=account_of)
        once.migrate()
        yield once


# --- requests -------------------------------------------------------------------------------------------------


def app_of(once: AsyncOnefold, told: list[str]) -> FastAPI:
    app = FastAPI()

    async def tell(word: str) -> None:
        told.append(word)

    @app.post("/orders", status_code=201)
    @once.idempotent()
    async def endpoint(tx: Tx[Any], background: BackgroundTasks, status: int = 201) -> dict[str, int]:
        tx.after_commit(told.append, "plain")
        tx.after_commit(tell, word="awaited")
        tx.after_rollback(told.append, "undone")
        background.add_task(told.append, "answered")
        if status == 0:
            raise Refused
        if status >= 400:
            raise HTTPException(status)
        return {"status": status}

    once.install(app)
    return app


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
async def test_a_request_calls_its_commit_hooks_in_order_before_the_answer_is_out(
    once: AsyncOnefold, key: str | None
) -> None:
    told: list[str] = []
    async with calling(app_of(once, told)) as client:
        assert (await client.post("/orders", key=key)).status_code == 201
    assert told == ["plain", "awaited", "answered"]


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
@pytest.mark.parametrize("status", [402, 403, 500, 0])
async def test_a_refused_or_failed_request_calls_its_rollback_hooks_only(
    once: AsyncOnefold, key: str | None, status: int
) -> None:
    told: list[str] = []
    async with calling(app_of(once, told)) as client:
        assert (await client.post(f"/orders?status={status}", key=key)).status_code == (status or 500)
    assert told == ["undone"]


async def test_a_replay_calls_nothing(once: AsyncOnefold) -> None:
    told: list[str] = []
    async with calling(app_of(once, told)) as client:
        await client.post("/orders", key='"k"')
        told.clear()
        await client.post("/orders", key='"k"')
    assert told == []


async def test_a_hook_that_fails_is_logged_and_changes_nothing(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = AsyncOnefold(sqlite_path, principal=account_of)
    app, told = FastAPI(), list[str]()

    def fail(secret: str) -> None:
        raise Refused

    @app.post("/orders")
    @once.idempotent()
    async def endpoint(tx: Tx[Any]) -> dict[str, str]:
        tx.after_commit(fail, "4242")
        tx.after_commit(told.append, "next")
        return {"all": "well"}

    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).json() == {"all": "well"}
    assert told == ["next"]
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.getMessage().startswith("POST /orders: a hook after COMMIT failed (")
    assert "fail" in record.getMessage().partition("(")[2]
    assert "4242" not in record.getMessage()
    await once.close()


async def test_hooks_hold_no_connection(once: AsyncOnefold) -> None:
    """One hook takes as many connections as the pool has (two, in these drivers), so none is out with the request."""
    app, seen = FastAPI(), list[str]()

    async def use_the_pool() -> None:
        async with once.transaction(), once.transaction():
            seen.append("two connections")

    @app.post("/orders")
    @once.idempotent()
    async def endpoint(tx: Tx[Any]) -> None:
        tx.after_commit(use_the_pool)

    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
        assert (await client.post("/orders")).status_code == 200
    assert seen == ["two connections"] * 2


async def test_a_hook_of_a_plain_endpoint_runs_on_a_thread_too(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, principal=account_of)
    app, threads = FastAPI(), list[bool]()

    def note() -> None:
        threads.append(threading.current_thread() is threading.main_thread())

    @app.post("/orders")
    @once.idempotent()
    def endpoint(tx: Tx[Any]) -> None:
        tx.after_commit(note)

    once.install(app)
    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).status_code == 200
    assert threads == [False]
    once.close()


async def test_hooks_of_plain_endpoints_that_hang_hold_up_no_other_and_take_no_thread_of_the_loop(
    sqlite_path: Path,
) -> None:
    """A loop has a handful of threads, which look up the names of hosts, too."""
    once = Onefold(sqlite_path, principal=account_of)
    app, go, hanging = FastAPI(), threading.Event(), list[int]()

    @app.post("/orders", status_code=201)
    @once.idempotent()
    def endpoint(tx: Tx[Any], hangs: bool) -> None:
        def hang() -> None:
            hanging.append(1)
            go.wait(PATIENCE_S)

        tx.after_commit(hang if hangs else time.monotonic)

    once.install(app)
    async with calling(app) as client, asyncio.timeout(PATIENCE_S / 2):
        held = [asyncio.create_task(client.post("/orders?hangs=1", key=f'"{number}"')) for number in range(33)]
        await until(lambda: len(hanging) == 33)
        assert (await client.post("/orders?hangs=0", key='"k"')).status_code == 201
        await asyncio.to_thread(go.set)
        assert [answer.status_code for answer in await asyncio.gather(*held)] == [201] * 33
    once.close()


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
def test_a_flask_view_has_hooks(sync_once: Onefold, key: str | None) -> None:
    app, told = flask.Flask(__name__), list[str]()

    @app.post("/orders/<int:status>")
    @sync_once.idempotent()
    def view(status: int) -> tuple[dict[str, str], int]:
        current_transaction().after_commit(told.append, f"kept {status}")
        current_transaction().after_rollback(told.append, f"undone {status}")
        return {}, status

    sync_once.install(app)
    for status in (201, 402, 500):
        headers = {"x-account": "acme", **({} if key is None else {"idempotency-key": f'"{status}"'})}
        assert app.test_client().post(f"/orders/{status}", headers=headers).status_code == status
    assert told == ["kept 201", "undone 402", "undone 500"]


async def test_a_cancelled_request_calls_its_rollback_hooks(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=account_of)
    app, entered, undone = FastAPI(), asyncio.Event(), asyncio.Event()

    @app.post("/orders")
    @once.idempotent()
    async def endpoint(tx: Tx[Any]) -> None:
        tx.after_rollback(undone.set)
        entered.set()
        await asyncio.Event().wait()

    once.install(app)
    async with calling(app) as client:
        request = asyncio.create_task(client.post("/orders", key='"k"'))
        await asyncio.wait_for(entered.wait(), 60)
        request.cancel()
        await asyncio.wait_for(undone.wait(), 60)
    await once.close()


# --- blocks ---------------------------------------------------------------------------------------------------


async def test_a_transaction_block_has_hooks(once: AsyncOnefold) -> None:
    told: list[str] = []
    async with once.transaction() as tx:
        tx.after_commit(told.append, "kept")
        tx.after_rollback(told.append, "never")
        assert told == []
    assert told == ["kept"]
    with suppress(Refused):
        async with once.transaction() as tx:
            tx.after_commit(told.append, "never")
            tx.after_rollback(told.append, "undone")
            raise Refused
    assert told == ["kept", "undone"]


async def test_a_handled_message_has_hooks(once: AsyncOnefold) -> None:
    told: list[str] = []
    with suppress(Refused):
        async with once.handling("mail", "m1") as tx:
            assert tx is not None
            tx.after_commit(told.append, "never")
            tx.after_rollback(told.append, "undone")
            raise Refused
    async with once.handling("mail", "m1") as tx:
        assert tx is not None
        tx.after_commit(told.append, "kept")
    assert told == ["undone", "kept"]


def test_blocks_of_threads_have_hooks(sync_once: Onefold) -> None:
    told: list[str] = []
    with sync_once.transaction() as tx:
        tx.after_commit(told.append, "kept")
    with suppress(Refused), sync_once.handling("mail", "m1") as given:
        assert given is not None
        given.after_rollback(told.append, "undone")
        raise Refused
    with sync_once.handling("mail", "m1") as given:
        assert given is not None
        given.after_commit(told.append, "handled")
    assert told == ["kept", "undone", "handled"]


async def test_a_cancelled_block_calls_its_rollback_hooks(once: AsyncOnefold) -> None:
    entered, undone = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with once.transaction() as tx:
            tx.after_rollback(undone.set)
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait_for(entered.wait(), 60)
    task.cancel()
    await asyncio.wait_for(undone.wait(), 60)


def test_a_thread_takes_no_async_hook(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path)

    async def hook() -> None: ...

    with once.transaction() as tx, pytest.raises(ProgrammerError, match=r"hook is an async function"):
        tx.after_commit(hook)
    once.close()


@pytest.mark.parametrize("hook", ["after_commit", "after_rollback"])
def test_a_hook_that_was_called_already_is_refused_where_it_is_asked_for(sqlite_path: Path, hook: str) -> None:
    async def send(order: int) -> None: ...

    once = Onefold(sqlite_path)
    with once.transaction() as tx:
        with pytest.raises(
            ProgrammerError, match=rf"tx.{hook}: None is not a function; .*: tx.{hook}\(send, order_id\)"
        ):
            getattr(tx, hook)(None)
        with pytest.raises(ProgrammerError, match=rf"tx.{hook}: <coroutine object .*send.* is not a function"):
            getattr(tx, hook)(send(1))
    once.close()


def test_after_the_end_there_is_nothing_to_wait_for(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path)
    with once.transaction() as tx:
        pass
    with pytest.raises(ProgrammerError, match="is over"):
        tx.after_commit(print)
    once.close()


@pytest.mark.parametrize(("error", "told"), [(OnefoldError("no"), ["undone"]), (ConnectionLost("gone"), [])])
def test_a_commit_that_fails_calls_the_rollback_hooks_and_one_that_is_lost_neither(
    sqlite_path: Path, error: OnefoldError, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    once, heard = Onefold(sqlite_path), list[str]()
    with suppress(OnefoldError), once.transaction() as tx:
        tx.after_commit(heard.append, "kept")
        tx.after_rollback(heard.append, "undone")
        _ = tx.connection

        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(tx._executor, "_connection", Failing(tx._executor.connection, fail))
    assert heard == told
    once.close()


class Failing:
    """A connection that is lost with its next batch."""

    def __init__(self, connection: Any, fail: Any) -> None:
        self._connection = connection
        self.batch = fail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


# --- savepoints -----------------------------------------------------------------------------------------------


async def test_a_savepoint_that_rolls_back_takes_its_commit_hooks_and_calls_its_rollback_hooks(
    once: AsyncOnefold,
) -> None:
    told: list[str] = []
    async with once.transaction() as tx:
        tx.after_commit(told.append, "outside")
        with suppress(Refused):
            async with tx.savepoint():
                tx.after_commit(told.append, "never")
                tx.after_rollback(told.append, "undone")
                async with tx.savepoint():
                    tx.after_commit(told.append, "nor this")
                raise Refused
        async with tx.savepoint():
            tx.after_commit(told.append, "inside")
            tx.after_rollback(told.append, "nor that")
        assert told == []
    assert told == ["outside", "undone", "inside"]


# --- consumers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
async def test_a_consumer_s_handler_has_hooks(once: AsyncOnefold, fails: bool) -> None:
    backend, told = Backend(once._database), list[str]()

    async def handler(given: Message, tx: Transaction[Any]) -> None:
        tx.after_commit(told.append, "kept")
        tx.after_rollback(told.append, "undone")
        if fails:
            raise Refused

    event = await backend.deliver(backend.inbox(handler, attempts=1), message("m1"))
    assert isinstance(event, DeadLettered if fails else Handled)
    assert told == ["undone" if fails else "kept"]
