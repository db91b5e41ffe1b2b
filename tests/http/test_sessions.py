"""FastAPI with SQLAlchemy: sessions whose rows commit with the key, in both colours and on both databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_sessions import AsyncSessionTx, SessionTx
from tests.http.stages import Client, account_of, calling, problem, replayed


class Order(BaseModel):
    item: str
    status: int = 201
    commits: int = 0
    flushes: bool = False
    raises: bool = False


class Tables(DeclarativeBase):
    pass


class Bought(Tables):
    __tablename__ = "orders"

    item: Mapped[str] = mapped_column(primary_key=True)


@dataclass(slots=True)
class Stage:
    """An application with sessions, its client, and a look at the rows from outside."""

    client: Client
    engine: Engine
    errors: list[BaseException]

    def items(self) -> list[str]:
        with self.engine.connect() as connection:
            return [item for (item,) in connection.execute(text("SELECT item FROM orders ORDER BY item"))]

    def records(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM onefold_record")).scalar_one())

    async def buy(self, item: str, key: str | None = '"k"', **order: Any) -> Any:
        return await self.client.post("/orders", {"item": item, **order}, key=key)


def answer(order: Order) -> dict[str, str]:
    if order.raises:
        raise LookupError("as you wish")
    if order.status != 201:
        raise HTTPException(order.status)
    return {"bought": order.item}


def plain_app(once: Onefold, errors: list[BaseException]) -> FastAPI:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent()
    def endpoint(order: Order, session: SessionTx, background: BackgroundTasks) -> dict[str, str]:
        session.add(Bought(item=order.item))
        for _ in range(order.commits):
            session.commit()
        if order.flushes:
            session.flush()

        def later() -> None:
            try:
                session.execute(text("INSERT INTO orders (item) VALUES ('too late')"))
                session.commit()
            except Exception as error:
                errors.append(error)

        background.add_task(later)
        return answer(order)

    once.install(app)
    return app


def async_app(once: AsyncOnefold, errors: list[BaseException]) -> FastAPI:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent()
    async def endpoint(order: Order, session: AsyncSessionTx, background: BackgroundTasks) -> dict[str, str]:
        session.add(Bought(item=order.item))
        for _ in range(order.commits):
            await session.commit()
        if order.flushes:
            await session.flush()

        async def later() -> None:
            try:
                await session.execute(text("INSERT INTO orders (item) VALUES ('too late')"))
                await session.commit()
            except Exception as error:
                errors.append(error)

        background.add_task(later)
        return answer(order)

    once.install(app)
    return app


@pytest.fixture(params=["session-sqlite", "session-psycopg", "async-session-aiosqlite", "async-session-asyncpg"])
async def stage(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Stage]:
    kind, _, driver = request.param.rpartition("-")
    if driver in ("psycopg", "asyncpg"):
        address = request.getfixturevalue("postgres_dsn").partition("://")[2]
        outside = create_engine(f"postgresql+psycopg://{address}")
        url = f"postgresql+{driver}://{address}"
    else:
        outside = create_engine(f"sqlite:///{sqlite_path}")
        url = f"sqlite+{driver}:///{sqlite_path}" if driver == "aiosqlite" else f"sqlite:///{sqlite_path}"
    Tables.metadata.create_all(outside)
    errors: list[BaseException] = []
    engine: Engine | AsyncEngine
    if kind == "session":
        engine = create_engine(url)
        once = Onefold(engine, principal=account_of, development=True)
        once.migrate()
        app = plain_app(once, errors)
    else:
        engine = create_async_engine(url)
        async_once = AsyncOnefold(engine, principal=account_of, development=True)
        await async_once.migrate()
        app = async_app(async_once, errors)
    async with calling(app) as client:
        yield Stage(client, outside, errors)
    if isinstance(engine, AsyncEngine):
        await engine.dispose()
    else:
        engine.dispose()
    outside.dispose()


async def test_what_was_added_is_written_without_a_commit(stage: Stage) -> None:
    first = await stage.buy("book")
    assert (first.status_code, first.json()) == (201, {"bought": "book"})
    assert stage.items() == ["book"]
    retry = await stage.buy("book")
    assert (retry.status_code, retry.content, replayed(retry)) == (201, first.content, True)
    assert stage.items() == ["book"]


@pytest.mark.parametrize("commits", [1, 3])
async def test_a_commit_of_the_session_is_harmless(stage: Stage, commits: int) -> None:
    assert (await stage.buy("book", commits=commits)).status_code == 201
    assert replayed(await stage.buy("book", commits=commits))
    assert stage.items() == ["book"]


async def test_a_commit_of_the_session_is_undone_with_the_request(stage: Stage) -> None:
    assert (await stage.buy("book", commits=1, raises=True)).status_code == 500
    assert (stage.items(), stage.records()) == ([], 0)


@pytest.mark.parametrize("flushes", [True, False], ids=["flushed", "held back"])
async def test_a_refusal_leaves_no_row_whether_flushed_or_committed(stage: Stage, flushes: bool) -> None:
    assert (await stage.buy("book", status=402, flushes=flushes)).status_code == 402
    assert replayed(await stage.buy("book", status=402, flushes=flushes))
    assert (await stage.buy("pen", '"l"', status=402, commits=1)).status_code == 402
    assert (stage.items(), stage.records()) == ([], 2)


async def test_rows_that_clash_when_they_are_flushed_are_a_500_and_nothing_is_stored(stage: Stage) -> None:
    await stage.buy("book", '"first"')
    clash = await stage.buy("book", '"second"')
    assert (clash.status_code, problem(clash)) == (500, "")
    assert (stage.items(), stage.records()) == (["book"], 1)
    with Session(stage.engine) as session:
        session.execute(text("DELETE FROM orders"))
        session.commit()
    retry = await stage.buy("book", '"second"')
    assert (retry.status_code, replayed(retry)) == (201, False)


async def test_rows_that_clash_rise_to_the_application_as_what_they_are(stage: Stage) -> None:
    seen: list[BaseException] = []
    app = stage.client.http._transport.app  # type: ignore[attr-defined]

    async def outside(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except IntegrityError as error:
            seen.append(error)
            raise

    await stage.buy("book", '"first"')
    async with calling(outside) as client:
        await client.post("/orders", {"item": "book"}, key='"second"')
    assert len(seen) == 1


async def test_without_a_key_the_session_commits_before_the_answer_all_the_same(stage: Stage) -> None:
    assert (await stage.buy("book", key=None)).status_code == 201
    assert (await stage.buy("pen", key=None, status=402)).status_code == 402
    assert (stage.items(), stage.records()) == (["book"], 0)


async def test_a_session_that_outlives_the_answer_writes_nothing(stage: Stage) -> None:
    assert (await stage.buy("book")).status_code == 201
    assert len(stage.errors) == 1
    assert stage.items() == ["book"]


async def test_many_sessions_at_once_do_not_wait_for_each_other_for_ever(stage: Stage) -> None:
    many = await asyncio.gather(*(stage.buy(f"book {number}", f'"{number}"') for number in range(12)))
    assert [response.status_code for response in many] == [201] * 12
    assert len(stage.items()) == 12
