"""Inside the idempotency layer: what is done is replayed before anybody is turned away, and a refusal leaves nothing.

In the four backends of the contract: ASGI and WSGI, SQLite and Postgres.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import flask
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Onefold
from onefold._http.route_policy import Settings
from onefold._kernel import deadlines
from onefold.shedding import Shedding, shed_asgi, shed_wsgi
from onefold.telemetry import Claimed, Released, Shed
from onefold.testing.servers import PrivatePostgres
from tests.contract.backends import CONNECTIONS_MAX, AsgiBackend, Backend, WsgiBackend
from tests.contract.plans import Plan, RequestGuard
from tests.contract.rows import ALL, ASGI, POSTGRES, BackendName
from tests.contract.wire import looping
from tests.http.shedding.stages import until
from tests.http.stages import Orders, account_of, calling, problem
from tests.support.patience import PATIENCE_S

FULL = Shedding(limit=1, queue_most=0, status=503)


class ShedAsgiBackend(AsgiBackend):
    """A backend whose application sheds."""

    shedding_settings = FULL

    def _start(self, database: object, routes: dict[str, Settings], options: dict[str, Any]) -> None:
        super()._start(database, routes, options | {"shedding": self.shedding_settings})


class ShedWsgiBackend(WsgiBackend):
    """The same on threads."""

    shedding_settings = FULL

    def _start(self, database: object, routes: dict[str, Settings], options: dict[str, Any]) -> None:
        super()._start(database, routes, options | {"shedding": self.shedding_settings})


class OutsideAsgiBackend(AsgiBackend):
    """A planted fault: the shedder is outside of the layer."""

    def _start(self, database: object, routes: dict[str, Settings], options: dict[str, Any]) -> None:
        super()._start(database, routes, options)
        self._app = shed_asgi(self._app, FULL, listener=self.events.append)


class OutsideWsgiBackend(WsgiBackend):
    """The same on threads."""

    def _start(self, database: object, routes: dict[str, Settings], options: dict[str, Any]) -> None:
        super()._start(database, routes, options)
        self._app = shed_wsgi(self._app, FULL, listener=self.events.append)


Open = Callable[..., Backend]


@pytest.fixture(scope="module")
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    with looping() as loop:
        yield loop


@pytest.fixture
def open_backend(
    request: pytest.FixtureRequest, tmp_path: Path, loop_thread: asyncio.AbstractEventLoop
) -> Iterator[Open]:
    """Opens a backend whose application sheds, inside of the layer or outside."""
    opened: list[Backend] = []

    def open_one(name: BackendName, *, inside: bool = True) -> Backend:
        address = str(tmp_path / "orders.db")
        if name in POSTGRES:
            server: PrivatePostgres = request.getfixturevalue("postgres")
            address = server.fresh_database()
        backend: Backend
        if name in ASGI:
            backend = (ShedAsgiBackend if inside else OutsideAsgiBackend)(name, address, loop_thread)
        else:
            backend = (ShedWsgiBackend if inside else OutsideWsgiBackend)(name, address)
        opened.append(backend)
        return backend

    yield open_one
    for backend in opened:
        backend.close()


def check_replay_first(backend: Backend) -> None:
    assert backend.post(key='"done"', plan=Plan(body=b"served before")).status == 201
    guard = RequestGuard()
    running = backend.start(key='"running"', plan=Plan(guard=guard, writes=False))  # SQLite has one write lock
    guard.await_arrival()
    for _ in range(3):
        replay = backend.post(key='"done"')
        assert (replay.status, replay.body, replay.replayed) == (201, b"served before", True)
    assert backend.post(key='"done"', body=b"other").status == 422
    assert backend.post(key='"running"').problem == "key-in-flight"
    shed = backend.post(key='"new"')
    assert (shed.status, shed.problem) == (503, "overloaded")
    assert 1 <= int(shed.header("retry-after") or 0) <= 5
    guard.open()
    assert running.answer().status == 201


@pytest.mark.parametrize("name", ALL)
def test_replays_are_served_while_new_work_is_shed(open_backend: Open, name: BackendName) -> None:
    backend = open_backend(name)
    check_replay_first(backend)
    assert [event for event in backend.events if isinstance(event, Shed)] == [Shed("queue full", 0)]
    assert len(backend.records()) == 2, "what was shed left a record"
    later = backend.post(key='"new"')
    assert (later.status, later.replayed) == (201, False)
    assert backend.rows() == ["book"] * 2


@pytest.mark.parametrize("name", ALL)
def test_the_check_finds_a_shedder_that_is_outside_of_the_layer(open_backend: Open, name: BackendName) -> None:
    with pytest.raises(AssertionError, match="503"):
        check_replay_first(open_backend(name, inside=False))


@pytest.mark.parametrize("status", [503, 429])
@pytest.mark.parametrize("name", ALL)
def test_a_refusal_is_not_stored_whatever_its_status(open_backend: Open, name: BackendName, status: Any) -> None:
    backend: Any = open_backend(name)
    backend.shedding_settings = Shedding(limit=1, queue_most=0, status=status)
    guard = RequestGuard()
    running = backend.start(key='"running"', plan=Plan(guard=guard, writes=False))  # SQLite has one write lock
    guard.await_arrival()
    assert [backend.post(key='"new"').status for _ in range(3)] == [status] * 3
    assert backend.status_of('"new"')["state"] == "unknown"
    assert [event for event in backend.events if isinstance(event, Released)] != []
    guard.open()
    assert running.answer().status == 201
    assert backend.post(key='"new"').status == 201
    assert backend.events.count(Claimed("POST /orders", "replay")) == 0
    assert len(backend.records()) == 2


@pytest.mark.parametrize("name", ALL)
def test_expired_work_is_dropped_and_a_retry_with_time_runs(open_backend: Open, name: BackendName) -> None:
    backend = open_backend(name)
    late = backend.post(key='"k"', headers=(("request-timeout-ms", "0"),))
    assert (late.status, late.problem) == (504, "deadline-passed")
    assert not backend.calls
    seen: list[float | None] = []

    async def look(desk: Any) -> None:
        seen.append(deadlines.left_s())

    retried = backend.post(key='"k"', headers=(("request-timeout-ms", "60000"),), plan=Plan(acts=look))
    assert (retried.status, retried.replayed) == (201, False)
    assert seen[0] is not None
    assert 0 < seen[0] <= 60
    replay = backend.post(key='"k"', headers=(("request-timeout-ms", "0"),))
    assert (replay.status, replay.replayed) == (201, True), "an answer that is there costs nothing, however late"


@pytest.mark.parametrize("name", ALL)
def test_who_waits_inside_the_layer_runs_when_there_is_room(open_backend: Open, name: BackendName) -> None:
    backend: Any = open_backend(name)
    backend.shedding_settings = Shedding(limit=1, queue_most=5, wait_most_s=60)
    guard = RequestGuard()
    first = backend.start(key='"0"', plan=Plan(guard=guard, writes=False))
    guard.await_arrival()
    others = [backend.start(key=f'"{number}"') for number in (1, 2, 3)]
    until(lambda: backend.events.count(Claimed("POST /orders", "run")) == 4)
    assert len(backend.calls) == 1
    guard.open()
    assert [pending.answer().status for pending in (first, *others)] == [201] * 4
    assert len(backend.records()) == 4


@pytest.mark.parametrize("name", ALL)
def test_who_waits_inside_the_layer_holds_neither_a_connection_nor_its_key(
    open_backend: Open, name: BackendName
) -> None:
    backend: Any = open_backend(name)
    backend.shedding_settings = Shedding(limit=1, queue_most=CONNECTIONS_MAX, wait_most_s=60)
    guard = RequestGuard()
    first = backend.start(key='"0"', plan=Plan(guard=guard, writes=False))
    guard.await_arrival()
    # As many as the pool has connections: were they held, nothing else could be claimed, nor even asked about.
    others = [backend.start(key=f'"{number}"') for number in range(1, CONNECTIONS_MAX + 1)]
    until(lambda: backend.events.count(Released("POST /orders", "waits for its turn")) == CONNECTIONS_MAX)
    assert {backend.status_of(f'"{number}"')["state"] for number in range(1, CONNECTIONS_MAX + 1)} == {"unknown"}
    if backend.is_postgres:
        open_ones = backend.sql("SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'")
        assert open_ones == [(1,)], "only the one that runs"
    guard.open()
    assert [pending.answer().status for pending in (first, *others)] == [201] * (CONNECTIONS_MAX + 1)
    assert len(backend.records()) == len(backend.calls) == CONNECTIONS_MAX + 1


def aside(backend: Backend, count: int) -> bool:
    """Whether so many have stepped aside."""
    return backend.events.count(Released("POST /orders", "waits for its turn")) == count


@pytest.mark.parametrize("name", ALL)
def test_of_two_that_wait_with_one_key_the_second_gets_the_answer_of_the_first(
    open_backend: Open, name: BackendName
) -> None:
    backend: Any = open_backend(name)
    backend.shedding_settings = Shedding(limit=1, queue_most=5, wait_most_s=60)
    guard = RequestGuard()
    first = backend.start(key='"0"', plan=Plan(guard=guard, writes=False))
    guard.await_arrival()
    twins = []
    for number in (1, 2):  # one after the other: while the first has its key claimed, the second is refused
        twins.append(backend.start(key='"twin"', plan=Plan(body=b"once")))
        until(partial(aside, backend, number))
    guard.open()
    assert first.answer().status == 201
    answers = [twin.answer() for twin in twins]
    # Under WSGI a place is free before COMMIT: the second may meet the first's key, and is told to ask again.
    answers = [backend.post(key='"twin"') if answer.status == 409 else answer for answer in answers]
    assert [(answer.status, answer.body) for answer in answers] == [(201, b"once")] * 2
    assert sorted(answer.replayed for answer in answers) == [False, True]
    assert len(backend.calls) == 2
    assert backend.post(key='"later"').status == 201, "a place was not given back"


# Installed into frameworks


@pytest.mark.parametrize("colour", [AsyncOnefold, Onefold])
async def test_installed_into_fastapi_replays_come_first_and_other_routes_are_shed_too(
    sqlite_path: Path, colour: type[AsyncOnefold] | type[Onefold]
) -> None:
    orders = Orders(sqlite_path)
    once = colour(orders.path, principal=account_of, shedding=Shedding(limit=1, queue_most=0, exempt=["/health"]))
    app = FastAPI()
    once.install(app)
    entered, guard = asyncio.Event(), asyncio.Event()

    @app.post("/orders")
    @once.idempotent(writes=False)
    async def order() -> str:
        return "ordered"

    @app.get("/slow")
    async def slow() -> str:
        entered.set()
        await guard.wait()
        return "slow"

    app.get("/health")(lambda: "well")

    async with calling(app) as client:
        assert (await client.post("/orders", key='"k"')).json() == "ordered"
        running = asyncio.create_task(client.get("/slow"))
        await asyncio.wait_for(entered.wait(), PATIENCE_S)
        assert (await client.post("/orders", key='"k"')).headers["idempotent-replayed"] == "true"
        assert problem(await client.post("/orders", key='"l"')) == "overloaded"
        assert problem(await client.get("/slow")) == "overloaded"
        assert (await client.get("/health")).json() == "well"
        assert (await client.get("/onefold/specification")).status_code == 200
        guard.set()
        assert (await running).json() == "slow"
        assert (await client.post("/orders", key='"l"')).json() == "ordered"
    assert orders.records == 2
    if isinstance(once, AsyncOnefold):
        await once.close()
    else:
        once.close()


def test_installed_into_flask_a_request_without_time_is_dropped(sqlite_path: Path) -> None:
    orders = Orders(sqlite_path)
    once = Onefold(orders.path, principal=account_of, shedding=Shedding())
    app = flask.Flask(__name__)

    @app.post("/orders")
    @once.idempotent()
    def order() -> str:
        return "ordered"

    once.install(app)
    headers = {"x-account": "acme", "idempotency-key": '"k"'}
    client = app.test_client()
    assert client.post("/orders", headers=headers | {"request-timeout-ms": "0"}).status_code == 504
    assert client.post("/orders", headers=headers).text == "ordered"
    replay = client.post("/orders", headers=headers | {"request-timeout-ms": "0"})
    assert (replay.text, replay.headers["idempotent-replayed"]) == ("ordered", "true")
    once.close()
