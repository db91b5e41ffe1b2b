"""The application's own sessions in its requests: what its factory makes of them, and when their hooks are called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_sessions import AsyncSessionTx, SessionTx
from onefold.db.sqlalchemy import tx_of
from onefold.errors import ConfigurationError, ProgrammerError
from tests.http.stages import account_of, calling
from tests.sessions.stages import KINDS, Order, Stage, TenantSession, staged

F = TypeVar("F", bound=Callable[..., Any])


@pytest.fixture(params=KINDS)
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


def buying(once: Any, *, listen: Any = None) -> FastAPI:
    """An application whose one endpoint buys something; `listen` is handed each session."""
    app = FastAPI()
    marked: Callable[[F], F] = once.idempotent()
    if isinstance(once, AsyncOnefold):

        @app.post("/orders/{item}", status_code=201)
        @marked
        async def buy(item: str, session: AsyncSessionTx, status: int = 201, commits: int = 0) -> list[str]:
            if listen is not None:
                listen(session.sync_session)
            session.add(Order(item=item))
            for _ in range(commits):
                await session.commit()
            await tx_of(session).publish("order.placed", {"item": item})
            if status >= 400:
                raise HTTPException(status)
            return list(await session.scalars(select(Order.item).order_by(Order.item)))
    else:

        @app.post("/orders/{item}", status_code=201)
        @marked
        def buy_on_a_thread(item: str, session: SessionTx, status: int = 201, commits: int = 0) -> list[str]:
            if listen is not None:
                listen(session)
            session.add(Order(item=item))
            for _ in range(commits):
                session.commit()
            _ = tx_of(session).publish("order.placed", {"item": item})
            if status >= 400:
                raise HTTPException(status)
            return list(session.scalars(select(Order.item).order_by(Order.item)))

    once.install(app)
    return app


# --- the hooks of the ORM -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
@pytest.mark.parametrize("commits", [0, 2])
async def test_the_commit_hooks_of_a_session_are_called_once_after_the_real_commit(
    stage: Stage, commits: int, key: str | None
) -> None:
    once = await stage.migrated()
    async with calling(buying(once, listen=stage.listen)) as client:
        assert (await client.post(f"/orders/tea?commits={commits}", key=key)).status_code == 201
    assert stage.told == ["kept tea"]


@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without"])
@pytest.mark.parametrize("status", [402, 403, 503])
async def test_a_refused_request_calls_the_rollback_hooks_of_its_session(
    stage: Stage, status: int, key: str | None
) -> None:
    once = await stage.migrated()
    async with calling(buying(once, listen=stage.listen)) as client:
        assert (await client.post(f"/orders/tea?commits=1&status={status}", key=key)).status_code == status
    assert stage.told == ["undone "]
    assert stage.items() == []


async def test_a_commit_that_fails_calls_the_rollback_hooks_of_the_session(request: pytest.FixtureRequest) -> None:
    async with staged(request, "async-postgres") as stage:
        with stage.outside.begin() as connection:
            connection.execute(text("ALTER TABLE orders ADD twin text REFERENCES orders DEFERRABLE INITIALLY DEFERRED"))
            connection.execute(text("ALTER TABLE orders ALTER twin SET DEFAULT 'nobody'"))
        once = await stage.migrated()
        async with calling(buying(once, listen=stage.listen)) as client:
            assert (await client.post("/orders/tea?commits=1", key='"k"')).status_code == 500
        assert stage.told == ["undone "]


@pytest.mark.parametrize("where", ["class", "sessionmaker"])
async def test_hooks_of_the_application_s_factory_are_called_after_the_real_commit(stage: Stage, where: str) -> None:
    factory = stage.factory(expire_on_commit=True)
    read: list[str] = []

    class Own(TenantSession):
        """What this test listens to."""

    if where == "class" or stage.asynchronous:
        factory.configure(**({"sync_session_class": Own} if stage.asynchronous else {}))
        if not stage.asynchronous:
            factory = sessionmaker(stage.engine, class_=Own)
        stage.listen(Own)
        target: Any = Own
    else:
        stage.listen(factory)
        target = factory

    @event.listens_for(target, "after_flush")
    def note(session: Session, _: Any) -> None:
        session.info["written"] = list(session.new)

    @event.listens_for(target, "after_commit")
    def enqueue(session: Session) -> None:
        # A hook may read what was written, also where a commit() of the handler's has expired it.
        read.extend(order.item for order in session.info.get("written", ()))

    once = await stage.migrated(session_factory=factory)
    async with calling(buying(once)) as client:
        assert (await client.post("/orders/tea?commits=1", key='"k"')).status_code == 201
        assert (await client.post("/orders/cup?status=402", key='"l"')).status_code == 402
        assert (await client.post("/orders/pen", key='"m"')).status_code == 201
    assert stage.told == ["kept tea", "undone tea", "kept pen,tea"]
    assert read == ["tea", "pen"]


# --- the application's own factory ----------------------------------------------------------------------------


async def test_the_application_s_factory_keeps_its_tenant_filter(stage: Stage) -> None:
    with Session(stage.outside) as session:
        session.add(Order(item="secret", tenant="other"))
        session.commit()
    once = await stage.migrated(session_factory=stage.factory())
    async with calling(buying(once)) as client:
        assert (await client.post("/orders/tea", key='"k"')).json() == ["tea"]
        assert (await client.post("/orders/cup")).json() == ["cup", "tea"]


async def test_a_plain_function_may_be_the_factory(stage: Stage) -> None:
    once = await stage.migrated(session_factory=lambda: stage.factory()(info={"tenant": "acme"}))
    seen: list[Any] = []
    async with calling(buying(once, listen=lambda session: seen.append(session.info["tenant"]))) as client:
        assert (await client.post("/orders/tea", key='"k"')).status_code == 201
    assert seen == ["acme"]
    assert stage.items() == ["tea"]


async def test_binds_of_the_factory_to_the_engine_join_and_others_stay(stage: Stage) -> None:
    elsewhere = create_engine("sqlite://")
    bound: list[Any] = []

    def listen(session: Session) -> None:
        bound.append(session.get_bind(clause=text("SELECT 1")))

    maker: Any = async_sessionmaker if stage.asynchronous else sessionmaker
    factory = maker(binds={Order: stage.engine})

    def made() -> Any:
        session = factory()
        (session.sync_session if stage.asynchronous else session).bind = elsewhere
        return session

    once = await stage.migrated(session_factory=made)
    async with calling(buying(once, listen=listen)) as client:
        assert (await client.post("/orders/tea?status=402", key='"k"')).status_code == 402
        assert (await client.post("/orders/cup", key='"l"')).status_code == 201
    assert stage.items() == ["cup"]
    assert bound == [elsewhere, elsewhere]
    elsewhere.dispose()


async def test_a_session_class_that_chooses_its_engine_joins_all_the_same(stage: Stage) -> None:
    engine = stage.engine.sync_engine if stage.asynchronous else stage.engine

    class Routing(Session):
        """As SQLAlchemy documents it for replicas."""

        def get_bind(self, *args: Any, **kwargs: Any) -> Any:
            return engine

    factory: Any = sessionmaker(class_=Routing)
    if stage.asynchronous:
        factory = async_sessionmaker(sync_session_class=Routing)
    once = await stage.migrated(session_factory=factory)
    async with calling(buying(once)) as client:
        assert (await client.post("/orders/tea?status=402", key='"k"')).status_code == 402
        assert (await client.post("/orders/cup", key='"l"')).status_code == 201
    assert stage.items() == ["cup"]


async def test_the_options_of_the_engine_that_the_factory_is_bound_to_are_kept(request: pytest.FixtureRequest) -> None:
    async with staged(request, "async-postgres") as stage:
        with stage.outside.begin() as connection:
            connection.execute(text("CREATE SCHEMA tenant"))
            connection.execute(text("CREATE TABLE tenant.orders (LIKE orders INCLUDING ALL)"))
        tenant = stage.engine.execution_options(schema_translate_map={None: "tenant"})
        once = await stage.migrated(session_factory=async_sessionmaker(tenant))
        async with calling(buying(once)) as client:
            assert (await client.post("/orders/tea", key='"k"')).status_code == 201
        assert stage.items() == []
        with stage.outside.connect() as connection:
            assert connection.execute(text("SELECT item FROM tenant.orders")).scalars().all() == ["tea"]


async def look(once: Onefold | AsyncOnefold) -> None:
    if isinstance(once, AsyncOnefold):
        async with once.transaction() as tx:
            await tx.session().execute(text("SELECT 1"))
    else:
        with once.transaction() as tx:
            tx.session().execute(text("SELECT 1"))


@pytest.mark.parametrize("kind", ["sync-postgres", "async-postgres"])
@pytest.mark.parametrize("engine_level", [None, "REPEATABLE READ"])
async def test_a_session_that_asks_for_a_stricter_isolation_is_never_given_less(
    request: pytest.FixtureRequest, kind: str, engine_level: str | None
) -> None:
    async with staged(request, kind) as stage:
        serializable = stage.engine.execution_options(isolation_level="SERIALIZABLE")
        factory = type(stage.factory())(serializable)
        if engine_level is not None:
            stage.engine = stage.engine.execution_options(isolation_level=engine_level)
        once = await stage.migrated(session_factory=factory)
        async with calling(buying(once)) as client:
            assert (await client.post("/orders/tea", key='"k"')).status_code == 500
        assert stage.items() == []
        told = r"isolation_level='SERIALIZABLE', but .* has begun with (READ COMMITTED|REPEATABLE READ)\. .*isolation="
        with pytest.raises(ConfigurationError, match=told):
            await look(once)


@pytest.mark.parametrize("kind", ["sync-postgres", "async-postgres", "sync-sqlite", "async-sqlite"])
@pytest.mark.parametrize("by", ["setting", "engine"])
async def test_a_session_joins_a_transaction_of_the_isolation_it_asks_for(
    request: pytest.FixtureRequest, kind: str, by: str
) -> None:
    async with staged(request, kind) as stage:
        serializable = stage.engine.execution_options(isolation_level="SERIALIZABLE")
        if by == "engine":
            stage.engine = serializable
        once = await stage.migrated(
            session_factory=type(stage.factory())(serializable),
            **({"isolation": "serializable"} if by == "setting" else {}),
        )
        async with calling(buying(once)) as client:
            assert (await client.post("/orders/tea", key='"k"')).status_code == 201
        assert stage.items() == ["tea"]


async def test_a_registry_may_give_out_the_same_session_again(request: pytest.FixtureRequest) -> None:
    async with staged(request, "sync-sqlite") as stage:
        registry = scoped_session(sessionmaker(stage.engine), scopefunc=lambda: "one")
        once = await stage.migrated(session_factory=registry)
        stage.listen(registry)
        async with calling(buying(once)) as client:
            assert (await client.post("/orders/tea", key='"k"')).status_code == 201
            assert (await client.post("/orders/cup?status=402", key='"l"')).status_code == 402
            assert (await client.post("/orders/pen", key='"m"')).status_code == 201
        assert stage.items() == ["pen", "tea"]
        assert stage.told == ["kept tea", "undone tea", "kept pen,tea"]
        registry.add(Order(item="afterwards"))
        registry.commit()
        assert stage.told[3:] == ["kept afterwards,pen,tea"]
        registry.remove()


async def test_a_session_that_is_in_use_already_is_refused(request: pytest.FixtureRequest) -> None:
    async with staged(request, "sync-sqlite") as stage:
        used = Session(stage.engine)
        used.execute(text("SELECT 1"))
        once = await stage.migrated(session_factory=lambda: used)
        async with calling(buying(once)) as client:
            answer = await client.post("/orders/tea", key='"k"')
        assert answer.status_code == 500
        used.close()


def test_a_factory_of_the_other_colour_is_refused_where_it_is_given(tmp_path: Any) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with pytest.raises(ConfigurationError, match="AsyncSession, not Session: Onefold needs a sessionmaker"):
        Onefold(engine, session_factory=async_sessionmaker())
    with pytest.raises(ConfigurationError, match="cannot be called"):
        Onefold(engine, session_factory="sessions")  # type: ignore[arg-type]
    engine.dispose()


def test_a_factory_without_an_engine_is_refused_where_it_is_given(tmp_path: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a SQLAlchemy engine"):
        Onefold(tmp_path / "shop.db", session_factory=sessionmaker())


# --- publish beside a session ---------------------------------------------------------------------------------


async def test_an_event_is_published_beside_the_session_and_shares_its_fate(stage: Stage) -> None:
    once = await stage.migrated()
    async with calling(buying(once)) as client:
        assert (await client.post("/orders/tea", key='"k"')).status_code == 201
        assert (await client.post("/orders/cup?status=402", key='"l"')).status_code == 402
    assert (stage.items(), stage.events()) == (["tea"], 1)


def test_a_session_of_the_application_s_alone_has_no_transaction_to_publish_in() -> None:
    for session in (Session(), AsyncSession()):
        with pytest.raises(ProgrammerError, match="in no transaction of onefold's"):
            tx_of(session)


async def test_without_an_engine_there_is_no_session(tmp_path: Any) -> None:
    once = AsyncOnefold(tmp_path / "shop.db", principal=account_of)
    async with once.transaction() as tx:
        with pytest.raises(ProgrammerError, match="sessions need SQLAlchemy"):
            tx.session()
    with pytest.raises(ConfigurationError, match="its database is not a SQLAlchemy engine"):
        buying(once)
    await once.close()
