"""A COMMIT that took place, and whose answer was lost, is looked up, and is the request's own success: all that follows
one happens. What another run has stored meanwhile is a replay, and nothing follows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import flask
import pytest
from fastapi import BackgroundTasks, FastAPI, Response

from onefold import AsyncOnefold, Onefold
from onefold._http.fastapi_dependencies import Tx
from onefold._http.flask_views import current_transaction
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import SqliteDatabase, async_sqlite
from onefold.telemetry import Settled
from tests.http.stages import account_of, calling, replayed
from tests.support.crash import Boundaries, Crossing, lose_connection


@pytest.fixture(params=["sqlite", "asyncpg"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    if request.param == "sqlite":
        found = async_sqlite(request.getfixturevalue("sqlite_path"))
        yield found
        await found.close()
    else:
        async with asyncpg.create_pool(request.getfixturevalue("postgres_dsn"), min_size=0, max_size=2) as pool:
            yield AsyncpgDatabase(pool)


def lose_commit(edge: str) -> Callable[[Crossing], None]:
    """The connection is lost before the first COMMIT, or after it."""
    struck: list[Crossing] = []

    def act(crossing: Crossing) -> None:
        if "commit" in crossing.verb and crossing.edge == edge and not struck:
            struck.append(crossing)
            lose_connection(crossing)

    return act


def app_of(once: AsyncOnefold, told: list[str]) -> FastAPI:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent()
    async def buy(tx: Tx[Any], response: Response, background: BackgroundTasks) -> str:
        told.append("run")
        tx.after_commit(told.append, "kept")
        tx.after_rollback(told.append, "undone")
        _ = tx.publish("order.placed", {})
        background.add_task(told.append, "background")
        response.set_cookie("seen", "yes")
        return "bought"

    once.install(app)
    return app


async def test_a_lost_commit_that_took_place_is_followed_by_all_that_follows_a_success(database: Any) -> None:
    boundaries, told, events = Boundaries(), list[str](), list[object]()
    once = AsyncOnefold(boundaries.around_async(database), principal=account_of, source="shop", listener=events.append)
    await once.migrate()
    once._outbox.committed.append(lambda: told.append("relay"))
    boundaries.act = lose_commit("after")
    async with calling(app_of(once, told)) as client:
        answer = await client.post("/orders", key='"k"')
        assert (answer.status_code, answer.json(), replayed(answer)) == (201, "bought", False)
        assert answer.cookies["seen"] == "yes"
        assert told == ["run", "relay", "kept", "background"]
        assert [event for event in events if isinstance(event, Settled)] == [Settled("POST /orders", 201, True)]
        assert replayed(await client.post("/orders", key='"k"'))
    assert told == ["run", "relay", "kept", "background"]


def view_of(once: Onefold, told: list[str]) -> Callable[[], tuple[str, bool]]:
    """Sends the one request; its answer, and whether it is a replay."""
    app = flask.Flask(__name__)

    @app.post("/orders")
    @once.idempotent()
    def buy() -> str:
        current_transaction().after_commit(told.append, "kept")
        current_transaction().after_rollback(told.append, "undone")
        return "bought"

    once.install(app)

    def send() -> tuple[str, bool]:
        answer = app.test_client().post("/orders", headers={"x-account": "acme", "idempotency-key": '"k"'})
        return answer.text, "idempotent-replayed" in answer.headers

    return send


def test_the_same_on_threads(sqlite_path: Path) -> None:
    boundaries, told = Boundaries(), list[str]()
    with closing(SqliteDatabase(sqlite_path)) as file:
        once = Onefold(boundaries.around(file), principal=account_of)
        once.migrate()
        send = view_of(once, told)
        boundaries.act = lose_commit("after")
        assert [send(), send()] == [("bought", False), ("bought", True)]
    assert told == ["kept"]


def test_what_another_run_has_stored_meanwhile_is_a_replay_also_where_it_answers_the_same(sqlite_path: Path) -> None:
    """A process that was cut off before its COMMIT: before it looks, another has run the request in its place."""
    boundaries, told, told_other = Boundaries(), list[str](), list[str]()
    with closing(SqliteDatabase(sqlite_path)) as file:
        # It does not ask first which release has made the database: what is taken second is for the look.
        once = Onefold(boundaries.around(file), principal=account_of, earlier_records=False)
        once.migrate()
        send, take_over = view_of(once, told), view_of(Onefold(file, principal=account_of), told_other)
        lose = lose_commit("before")

        def act(crossing: Crossing) -> None:
            if (crossing.verb, crossing.edge) == ("acquire", "before") and crossing.number > 1 and not told_other:
                assert take_over() == ("bought", False)
            lose(crossing)

        boundaries.crossings.clear()
        boundaries.act = act
        assert send() == ("bought", True)
    assert (told, told_other) == (["undone"], ["kept"])
