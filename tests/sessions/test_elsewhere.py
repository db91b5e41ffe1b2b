"""Sessions in consumers, blocks and Flask, and one session for a whole request: authentication, GET and POST."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import flask
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from sqlalchemy import event, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from onefold import AsyncOnefold, Message, Onefold
from onefold._http.fastapi_sessions import AsyncRequestSession, AsyncSessionTx, RequestSession, SessionTx
from onefold._http.flask_views import current_session
from onefold.db.sqlalchemy import tx_of
from onefold.errors import ConfigurationError, ProgrammerError
from onefold.shedding import Shedding
from onefold.telemetry import DeadLettered, Handled
from tests.http.stages import calling
from tests.sessions.stages import KINDS, Order, Stage, settle, staged
from tests.support.collector import left_to_collector
from tests.support.patience import PATIENCE_S

F = TypeVar("F", bound=Callable[..., Any])


@pytest.fixture(params=KINDS)
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


# --- consumers ------------------------------------------------------------------------------------------------


async def test_a_consumer_s_handler_gets_a_session_and_publishes_beside_it(stage: Stage) -> None:
    over: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def hear(happened: object) -> None:
        if isinstance(happened, Handled | DeadLettered):
            loop.call_soon_threadsafe(over.put_nowait, type(happened).__name__)

    once = await stage.migrated(session_factory=stage.factory(), broker="local", listener=hear)
    marked: Callable[[F], F] = once.consumer("shipping", topic="order.placed", attempts=1)
    if stage.asynchronous:

        @marked
        async def ship(message: Message, session: AsyncSession) -> None:
            stage.listen(session.sync_session)
            session.add(Order(item=message.json()["item"]))
            await session.commit()
            await tx_of(session).publish("order.shipped", {})
            if message.json()["item"] == "bad":
                raise LookupError
    else:

        @marked
        def ship_on_a_thread(message: Message, session: Session) -> None:
            stage.listen(session)
            session.add(Order(item=message.json()["item"]))
            session.commit()
            _ = tx_of(session).publish("order.shipped", {})
            if message.json()["item"] == "bad":
                raise LookupError

    async def run(stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(once.relay(stop))
            group.create_task(once.consume(stop))

    stop = asyncio.Event()
    running = asyncio.create_task(run(stop))
    for item, outcome in (("tea", "Handled"), ("bad", "DeadLettered")):
        await _placed(once, item)
        assert await asyncio.wait_for(over.get(), PATIENCE_S) == outcome
    stop.set()
    await running
    assert stage.items() == ["tea"]
    assert stage.told == ["kept tea", "undone tea"]


async def _placed(once: Any, item: str) -> None:
    if isinstance(once, AsyncOnefold):
        async with once.transaction() as tx:
            await tx.publish("order.placed", {"item": item})
    else:

        def place() -> None:
            with once.transaction() as tx:
                _ = tx.publish("order.placed", {"item": item})

        await asyncio.to_thread(place)


def test_a_consumer_that_cannot_have_its_session_is_refused_where_it_is_written(tmp_path: Any) -> None:
    once = Onefold(tmp_path / "shop.db")

    def handle(message: Message, session: Session) -> None: ...

    with pytest.raises(ConfigurationError, match=r"'mail' takes a session of type Session.* not a SQLAlchemy engine"):
        once.consumer("mail", topic="order.placed")(handle)
    once.close()


# --- blocks ---------------------------------------------------------------------------------------------------


async def test_a_block_has_a_session_and_it_is_always_the_same(stage: Stage) -> None:
    once = await stage.migrated(session_factory=stage.factory())

    async def work(block: Any, item: str, *, fails: bool = False) -> None:
        async with _entered(block, stage) as tx:
            session = tx.session()
            assert session is tx.session()
            stage.listen(session.sync_session if stage.asynchronous else session)
            session.add(Order(item=item))
            if fails:
                raise LookupError

    await work(once.transaction(), "tea")
    await work(once.handling("mail", "m1"), "cup")
    with pytest.raises(LookupError):
        await work(once.transaction(), "pen", fails=True)
    with pytest.raises(LookupError):
        await work(once.handling("mail", "m2"), "ink", fails=True)
    assert stage.items() == ["cup", "tea"]
    assert stage.told == ["kept tea", "kept cup,tea", "undone cup,tea", "undone cup,tea"]


class _entered:  # noqa: N801 - reads as a verb
    """A block of either colour."""

    def __init__(self, block: Any, stage: Stage) -> None:
        self._block = block
        self._async = stage.asynchronous

    async def __aenter__(self) -> Any:
        return await self._block.__aenter__() if self._async else self._block.__enter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self._block.__aexit__(*error) if self._async else self._block.__exit__(*error)


async def test_an_interrupted_session_calls_its_rollback_hooks_and_nothing_fails(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in ("async-sqlite", "async-postgres"):
        async with staged(request, kind) as stage:
            once = await stage.migrated()
            await _interrupted(once, stage)
            assert stage.items() == []
    assert [record.getMessage() for record in caplog.records] == []


async def _interrupted(once: AsyncOnefold, stage: Stage) -> None:
    entered, undone = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with once.transaction() as tx:
            session: AsyncSession = tx.session()
            event.listen(session.sync_session, "after_rollback", lambda _: undone.set())
            session.add(Order(item="tea"))
            await session.flush()
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait_for(undone.wait(), PATIENCE_S)
    await asyncio.gather(task, return_exceptions=True)


# --- Flask ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync-sqlite", "sync-postgres"])
async def test_a_flask_view_has_the_application_s_session(request: pytest.FixtureRequest, kind: str) -> None:
    async with staged(request, kind, pool_size=1, max_overflow=0, pool_timeout=1) as stage:
        once = await stage.migrated(session_factory=stage.factory())
        app = flask.Flask(__name__)
        marked: Callable[[F], F] = once.idempotent()

        @app.before_request
        def authenticate() -> None:
            _ = current_session().scalars(select(Order)).all()

        @app.post("/orders/<item>/<int:status>")
        @marked
        def buy(item: str, status: int) -> tuple[dict[str, str], int]:
            session = current_session()
            stage.listen(session)
            session.add(Order(item=item))
            session.commit()
            _ = tx_of(session).publish("order.placed", {"item": item})
            return {"item": item}, status

        @app.get("/orders")
        def orders() -> list[str]:
            return sorted(current_session().scalars(select(Order.item)))

        once.install(app)
        client = app.test_client()
        for key in ({"idempotency-key": '"k"'}, {}):
            assert client.post(f"/orders/tea{len(key)}/201", headers={"x-account": "a", **key}).status_code == 201
        assert client.post("/orders/cup/402", headers={"x-account": "a"}).status_code == 402
        assert [client.get("/orders").json for _ in range(2)] == [["tea0", "tea1"]] * 2
        assert stage.told == ["kept tea1", "kept tea0,tea1", "undone tea0,tea1"]
        assert stage.events() == 2


# --- one session for a whole request --------------------------------------------------------------------------


def authenticated(once: Any) -> FastAPI:
    """An application whose every request is authenticated in the database."""
    app = FastAPI()
    marked: Callable[[F], F] = once.idempotent()
    if isinstance(once, AsyncOnefold):

        async def user(session: AsyncRequestSession, x_account: str = Header()) -> str:
            if await session.get(Order, x_account) is None:
                raise HTTPException(401)
            return x_account

        @app.post("/orders/{item}", status_code=201)
        @marked
        async def buy(item: str, session: AsyncSessionTx, user: str = Depends(user)) -> str:
            session.add(Order(item=item))
            return user

        @app.get("/orders")
        async def orders(session: AsyncRequestSession, user: str = Depends(user)) -> list[str]:
            return list(await session.scalars(select(Order.item)))

        @app.post("/visits")
        async def visit(session: AsyncRequestSession, user: str = Depends(user)) -> None:
            session.add(Order(item="visit"))
            await session.commit()
    else:

        def user_on_a_thread(session: RequestSession, x_account: str = Header()) -> str:
            if session.get(Order, x_account) is None:
                raise HTTPException(401)
            return x_account

        @app.post("/orders/{item}", status_code=201)
        @marked
        def buy_on_a_thread(item: str, session: SessionTx, user: str = Depends(user_on_a_thread)) -> str:
            session.add(Order(item=item))
            return user

        @app.get("/orders")
        def orders_on_a_thread(session: RequestSession, user: str = Depends(user_on_a_thread)) -> list[str]:
            return list(session.scalars(select(Order.item)))

        @app.post("/visits")
        def visit_on_a_thread(session: RequestSession, user: str = Depends(user_on_a_thread)) -> None:
            session.add(Order(item="visit"))
            session.commit()

    once.install(app)
    return app


@pytest.mark.parametrize("kind", KINDS)
async def test_one_connection_serves_authentication_get_and_post_with_and_without_a_key(
    request: pytest.FixtureRequest, kind: str
) -> None:
    async with staged(request, kind, pool_size=1, max_overflow=0, pool_timeout=1) as stage:
        once = await stage.migrated(session_factory=stage.factory())
        with Session(stage.outside) as session:
            session.add(Order(item="acme"))
            session.commit()
        async with calling(authenticated(once)) as client:
            assert (await client.post("/orders/tea", key='"k"')).status_code == 201
            assert (await client.post("/orders/cup")).status_code == 201
            assert (await client.post("/visits")).status_code == 200
            assert sorted((await client.get("/orders")).json()) == ["acme", "cup", "tea", "visit"]
            assert (await client.post("/orders/pen", headers={"x-account": "eve"})).status_code == 401


@pytest.mark.parametrize("kind", ["sync-postgres", "async-postgres"])
async def test_sixty_requests_at_once_share_a_pool_of_five(request: pytest.FixtureRequest, kind: str) -> None:
    async with staged(request, kind, pool_size=5, max_overflow=0, pool_timeout=PATIENCE_S) as stage:
        once = await stage.migrated()
        with Session(stage.outside) as session:
            session.add(Order(item="acme"))
            session.commit()
        async with calling(authenticated(once)) as client:
            sent = [client.post(f"/orders/{n}", key=f'"{n}"' if n % 2 else None) for n in range(40)]
            read = [client.get("/orders") for _ in range(20)]
            answers = await asyncio.gather(*sent, *read)
        assert {answer.status_code for answer in answers[:40]} == {201}
        assert {answer.status_code for answer in answers[40:]} == {200}


async def test_no_thread_waits_for_a_connection_where_as_many_are_let_in_as_the_pool_has(
    request: pytest.FixtureRequest,
) -> None:
    async with staged(request, "sync-postgres", pool_size=5, max_overflow=0, pool_timeout=PATIENCE_S) as stage:
        once = await stage.migrated(shedding=Shedding(limit=5, queue_most=60))
        with Session(stage.outside) as session:
            session.add(Order(item="acme"))
            session.commit()
        async with calling(authenticated(once)) as client, asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*(client.get("/orders") for _ in range(60)))
        # On a machine that is slow at this moment some wait too long, and are turned away. None waits for the pool.
        assert {200} <= {answer.status_code for answer in answers} <= {200, 503}


async def test_without_onefold_in_the_application_a_session_says_what_is_missing() -> None:
    app, seen = FastAPI(), list[str]()

    @app.get("/orders")
    async def orders(session: AsyncRequestSession) -> None: ...

    @app.exception_handler(ProgrammerError)
    async def note(_: Any, error: ProgrammerError) -> Any:
        seen.append(str(error))
        raise error

    async with calling(app) as client:
        await client.get("/orders")
    assert "call once.install(app)" in seen[0]


@pytest.mark.parametrize("kind", ["sync-sqlite", "async-sqlite"])
async def test_a_session_leaves_nothing_to_the_garbage_collector(request: pytest.FixtureRequest, kind: str) -> None:
    async with staged(request, kind) as stage:
        once = await stage.migrated(session_factory=stage.factory(expire_on_commit=False))

        async def work() -> None:
            async with _entered(once.transaction(), stage) as tx:
                await settle(tx.session().execute(select(Order)))

        await work()
        with left_to_collector() as left:
            for _ in range(5):
                await work()
    assert left == []
