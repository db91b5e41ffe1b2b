"""Work that a handler leaves running, with the connection or session it was given: once the handler has ended, nothing
of it is executed, wherever it falls between the statements that settle the request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations, product
from typing import Any, TypeVar

import flask
import pytest
from fastapi import FastAPI, HTTPException
from sqlalchemy import Connection, event, text
from sqlalchemy.util import await_only

from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.db.sqlalchemy._handle import LentConnection
from onefold.errors import OnefoldError, TransactionMisused
from tests.http.stages import calling
from tests.sessions.stages import Stage, staged
from tests.support.patience import PATIENCE_S

F = TypeVar("F", bound=Callable[..., Any])

INSERT = text("INSERT INTO orders (item, tenant) VALUES (:item, 'acme')")


STAGES = ("sync-sqlite", "sync-postgres", "async-sqlite", "async-postgres", "async-psycopg")

#: The answer's status, the key, by what the straggler writes, and what it does.
ENDS = tuple(product((200, 404, 503), ("k-1", None), ("connection", "session"), ("execute", "rollback")))
#: With each two values of different columns in one of them. The others are about the end of a request, which is the
#: same on every database: SQLite has them all, and `make soak` the servers.
PAIRWISE = (
    (200, "k-1", "connection", "execute"),
    (200, None, "session", "rollback"),
    (404, "k-1", "session", "rollback"),
    (404, None, "connection", "execute"),
    (503, "k-1", "session", "execute"),
    (503, None, "connection", "rollback"),
)


def ends() -> list[Any]:
    return [
        pytest.param(stage, *end, marks=() if stage.endswith("sqlite") or end in PAIRWISE else pytest.mark.soak)
        for stage, end in product(STAGES, ENDS)
    ]


def test_each_two_values_of_an_end_meet_on_every_database() -> None:
    def pairs(chosen: Iterable[tuple[object, ...]]) -> set[object]:
        return {pair for end in chosen for pair in combinations(enumerate(end), 2)}

    assert pairs(PAIRWISE) == pairs(ENDS)


@pytest.fixture
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


class Straggler:
    """Has what a handler was given, and is let run once before each step of the request's end, and after it."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.what = "execute"
        #: What the handler was given, from its end on.
        self.given: Any = None
        #: What became of each attempt.
        self.outcomes: list[BaseException | None] = []
        self._resting = False
        self._pool = ThreadPoolExecutor(1)
        self._wanted: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        engine = getattr(stage.engine, "sync_engine", stage.engine)
        event.listen(engine, "before_cursor_execute", self._before_statement)
        for boundary in ("commit", "rollback"):
            event.listen(engine, boundary, self._pause)

    def _before_statement(self, _: Connection, cursor: Any, statement: str, *__: object) -> None:
        if "sa_savepoint" not in statement:  # a session's: what it holds is written in front of the end
            self._pause()

    def _pause(self, *_: object) -> None:
        if self.given is None or self._resting:
            return
        self._resting = True  # what it does itself is not a step of the end
        try:
            if self.stage.asynchronous:
                await_only(self.attempt())
            else:
                self._pool.submit(self._try).result(PATIENCE_S)
        finally:
            self._resting = False

    async def attempt(self) -> None:
        if not self.stage.asynchronous:
            self._pool.submit(self._try).result(PATIENCE_S)
            return
        done = asyncio.get_running_loop().create_future()
        self._wanted.put_nowait(done)
        await asyncio.wait_for(done, PATIENCE_S)

    def _try(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.outcomes.append(error)
        else:
            self.outcomes.append(None)

    def _work(self) -> Any:
        if self.what == "rollback":
            return self.given.rollback()
        return self.given.execute(INSERT, {"item": f"stray {len(self.outcomes)}"})

    async def run(self) -> None:
        """The task that a handler on asyncio leaves behind."""
        while True:
            done = await self._wanted.get()
            try:
                await self._work()
            except BaseException as error:
                self.outcomes.append(error)
            else:
                self.outcomes.append(None)
            done.set_result(None)


async def application(stage: Stage, straggler: Straggler, by: str) -> Any:
    """It answers as the path says. Its handler ends while the straggler has its connection, or its session."""
    once = await stage.migrated(session_factory=stage.factory())
    marked: Callable[[F], F] = once.idempotent()
    app: Any
    if stage.asynchronous:
        app = FastAPI()

        @marked
        async def buy(item: str, status: int, tx: Tx[Any]) -> dict[str, str]:
            given = tx.session() if by == "session" else tx.connection
            await given.execute(INSERT, {"item": item})
            app.state.left = asyncio.create_task(straggler.run())
            straggler.given = given
            if status >= 300:
                raise HTTPException(status)
            return {}

        app.post("/orders/{item}/{status}")(buy)
    else:
        app = flask.Flask("shop")

        @marked
        def sell(item: str, status: int) -> Any:
            tx = current_transaction()
            given = tx.session() if by == "session" else tx.connection
            given.execute(INSERT, {"item": item})
            straggler.given = given
            if status >= 300:
                flask.abort(status)
            return {}

        app.post("/orders/<item>/<int:status>")(sell)

    once.install(app)
    return app


async def post(app: Any, path: str, *, key: str | None) -> int:
    if isinstance(app, flask.Flask):
        headers = {"X-Account": "acme", **({} if key is None else {"Idempotency-Key": key})}
        return app.test_client().post(path, headers=headers).status_code
    async with calling(app) as client:
        return int((await client.post(path, key=key)).status_code)


@pytest.mark.parametrize(("stage", "status", "key", "by", "what"), ends(), indirect=["stage"])
async def test_what_a_handler_left_running_executes_nothing(
    stage: Stage, status: int, key: str | None, by: str, what: str
) -> None:
    straggler = Straggler(stage)
    straggler.what = what
    app = await application(stage, straggler, by)
    path = f"/orders/tea/{status}"
    assert await post(app, path, key=key) == status
    assert stage.items() == (["tea"] if status == 200 else [])
    during = len(straggler.outcomes)
    assert during > 0
    await straggler.attempt()
    straggler.given = None
    for outcome in straggler.outcomes[:during]:
        if by == "connection":
            assert isinstance(outcome, TransactionMisused), outcome
        elif what == "execute":
            assert isinstance(outcome, OnefoldError), outcome
    if what == "execute":
        assert isinstance(straggler.outcomes[-1], OnefoldError), straggler.outcomes
    if stage.asynchronous:
        app.state.left.cancel()
    if key is not None:
        assert await post(app, path, key=key) == status
    assert stage.items() == (["tea"] if status == 200 else [])


@pytest.mark.parametrize("stage", STAGES, indirect=True)
@pytest.mark.parametrize("status", [404, 503])
async def test_a_statement_on_its_way_when_the_handler_ends_is_waited_for(
    stage: Stage, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = await stage.migrated()
    marked: Callable[[F], F] = once.idempotent()
    engine = getattr(stage.engine, "sync_engine", stage.engine)
    kind: Any = asyncio.Event if stage.asynchronous else threading.Event
    on_its_way, ended = kind(), kind()
    app: Any

    @event.listens_for(engine, "before_cursor_execute")
    def hold(_: Connection, cursor: Any, statement: str, parameters: Any, *__: object) -> None:
        if "stray" in str(parameters):
            on_its_way.set()
            waited = ended.wait()
            if stage.asynchronous:
                await_only(waited)

    wait, wait_async = LentConnection.wait, LentConnection.wait_async

    def waiting(self: LentConnection, seconds: float) -> bool:
        ended.set()
        return wait(self, seconds)

    async def waiting_async(self: LentConnection, seconds: float) -> bool:
        ended.set()
        return await wait_async(self, seconds)

    if stage.asynchronous:
        app = FastAPI()

        @marked
        async def buy(item: str, status: int, tx: Tx[Any]) -> None:
            connection = tx.connection
            await connection.execute(INSERT, {"item": item})
            monkeypatch.setattr(LentConnection, "wait_async", waiting_async)
            app.state.left = asyncio.create_task(connection.execute(INSERT, {"item": "stray"}))
            await on_its_way.wait()
            raise HTTPException(status)

        app.post("/orders/{item}/{status}")(buy)
    else:
        app = flask.Flask("shop")
        pool = ThreadPoolExecutor(1)

        @marked
        def sell(item: str, status: int) -> Any:
            connection = current_transaction().connection
            connection.execute(INSERT, {"item": item})
            monkeypatch.setattr(LentConnection, "wait", waiting)
            app.extensions["left"] = pool.submit(connection.execute, INSERT, {"item": "stray"})
            on_its_way.wait()
            flask.abort(status)

        app.post("/orders/<item>/<int:status>")(sell)

    once.install(app)
    assert await asyncio.wait_for(post(app, f"/orders/tea/{status}", key="k-1"), PATIENCE_S) == status
    if stage.asynchronous:
        await app.state.left
    else:
        app.extensions["left"].result(PATIENCE_S)
    assert stage.items() == []
