"""Processes that die, stores that are gone, connections that are lost in the one moment that matters."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from onefold._http.route_policy import Settings
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase, async_sqlite
from onefold.errors import StoreUnavailable
from onefold.telemetry import Claimed
from onefold.testing.servers import PrivatePostgres
from tests.contract.backends import Backend
from tests.contract.commit_proxy import CommitProxy
from tests.contract.plans import Desk, Plan, RequestGuard
from tests.contract.rows import ASGI, POSTGRES, SQLITE
from tests.contract.victim import DONE, STUCK
from tests.support.fork_server import Child, fork_server
from tests.support.patience import PATIENCE_S

LEASE_S = 1.0


@contextlib.contextmanager
def stuck_process(backend: Backend, stuck: str) -> Iterator[Child]:
    """Another process of the same application, stuck before or after its write."""
    backend.prepare()
    server = fork_server("import tests.contract.backends")
    process = server.start_with_pipes("-m", "tests.contract.victim", backend.name, backend.address, str(LEASE_S), stuck)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        yield process
    finally:
        process.close()


@pytest.mark.contract("C29")
@pytest.mark.parametrize("stuck", ["before", "after"], ids=["before its write", "after its write"])
def test_c29_a_killed_process_leaves_a_stored_answer_or_a_clean_retry(backend: Backend, stuck: str) -> None:
    with stuck_process(backend, stuck) as process:
        process.kill()
        process.wait(PATIENCE_S)
    backend.serve(settings={"lease_s": LEASE_S, "wait_s": 15})
    assert backend.post(key=DONE, body={"item": "done"}).replayed
    retry = backend.post(key=STUCK, body={"item": "stuck"})
    assert (retry.status, retry.replayed) == (201, False)
    assert backend.rows() == ["done", "stuck"]


@pytest.mark.contract("C29")
@pytest.mark.parametrize("stuck", ["before", "after"], ids=["before its write", "after its write"])
def test_c29_a_killed_process_holds_its_key_against_nobody(backend: Backend, stuck: str) -> None:
    """Nothing of it was stored, so nothing says what its key was for: another payload is as good."""
    with stuck_process(backend, stuck) as process:
        process.kill()
        process.wait(PATIENCE_S)
    backend.serve(settings={"wait_s": 15})
    other = backend.post(key=STUCK, body={"item": "other"})
    assert (other.status, other.replayed) == (201, False)
    assert backend.rows() == ["done", "other"]


@pytest.mark.contract("C29", backends=SQLITE)
def test_c29_a_stopped_process_keeps_its_key_and_is_answered_when_it_goes_on(backend: Backend) -> None:
    """Nobody can tell it from a slow one: it is not run beside itself, and other keys are served."""
    with stuck_process(backend, "before") as process:
        process.send_signal(signal.SIGSTOP)
        backend.serve(settings={"lease_s": LEASE_S})
        assert backend.post(key=STUCK, body={"item": "stuck"}).problem == "key-in-flight"
        assert backend.post(key=STUCK, body={"item": "other"}).problem == "key-reused"
        assert backend.status_of(STUCK)["state"] == "in_flight"
        assert backend.post(key='"another"', body={"item": "another"}).status == 201
        process.send_signal(signal.SIGCONT)
        assert process.communicate("\n", PATIENCE_S) == "201 fresh\n"
    assert backend.post(key=STUCK, body={"item": "stuck"}).replayed
    assert backend.rows() == ["another", "done", "stuck"]


@pytest.mark.contract("C29", backends=POSTGRES)
def test_c29_a_process_that_wakes_up_after_its_lease_changes_nothing(backend: Backend) -> None:
    with stuck_process(backend, "before") as process:
        process.send_signal(signal.SIGSTOP)
        backend.serve(settings={"lease_s": LEASE_S, "wait_s": 15})
        retry = backend.post(key=STUCK, body={"item": "stuck"})
        assert (retry.status, retry.replayed) == (201, False)
        process.send_signal(signal.SIGCONT)
        told = process.communicate("\n", PATIENCE_S)
        # It lost its claim: either it finds the answer of the one who took over, or it cannot say.
        assert told in ("201 replayed\n", "503 fresh\n")
    assert backend.rows() == ["done", "stuck"]


@pytest.mark.contract("C29", backends=POSTGRES)
def test_c29_who_lost_its_lease_to_one_who_still_runs_writes_nothing(backend: Backend) -> None:
    async def write(desk: Desk) -> None:
        await desk.execute("INSERT INTO orders (item) VALUES (:1)", "late")

    backend.serve(settings={"wait_s": 15})
    late_guard, guard = RequestGuard(), RequestGuard()
    late = backend.start(key='"k"', plan=Plan(guard=late_guard, writes=False, acts=write))
    late_guard.await_arrival()
    backend.end_leases()
    running = backend.start(key='"k"', plan=Plan(guard=guard, writes=False, body=b"the one answer"))
    guard.await_arrival()
    late_guard.open()
    assert (late.answer().status, late.answer().problem) == (503, "store-unavailable")
    assert (backend.rows(), backend.records()) == ([], [])
    guard.open()
    assert (running.answer().status, running.answer().body) == (201, b"the one answer")
    assert backend.rows() == []
    assert backend.post(key='"k"').body == b"the one answer"


@pytest.mark.contract("C29", backends=POSTGRES)
@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without a key"])
@pytest.mark.parametrize("sqlstate", ["25P03", "25P04"], ids=["stood still", "took too long"])
def test_c29_a_statement_that_ends_with_the_lease_is_a_503_that_may_be_retried(
    backend: Backend, sqlstate: str, key: str | None
) -> None:
    """As the server raises it, without waiting for the lease: Postgres 16 does not know all of them."""

    async def outlive_the_lease(desk: Desk) -> None:
        await desk.execute(f"DO $$ BEGIN RAISE EXCEPTION 'timeout' USING ERRCODE = '{sqlstate}'; END $$")

    backend.serve(settings={"lease_s": 7})
    late = backend.post(key=key, plan=Plan(acts=outlive_the_lease))
    assert (late.status, late.problem, late.json["retryable"]) == (503, "store-unavailable", True)
    assert (backend.rows(), backend.records()) == ([], [])
    assert backend.post(key=key).status == 201
    assert backend.rows() == ["book"]


@dataclass(frozen=True, slots=True)
class Outage:
    """The store of a backend, which can go and come back."""

    down: Callable[[], object]
    up: Callable[[], object]


@pytest.fixture
def outage(backend: Backend, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Outage]:
    """Moves the backend to a store that may be taken down, and lets it serve from there."""
    settings: dict[str, Settings] = {"POST /orders": {}, "PUT /orders": {"store_down": "run"}}
    database: object
    if backend.is_postgres:
        server: PrivatePostgres = request.getfixturevalue("mortal_postgres")
        backend.address = server.fresh_database()
        dsn = backend.address
        database = AsyncpgDatabase(dsn) if backend.name in ASGI else PsycopgDatabase(dsn, acquire_timeout_s=1.5)
        backend.serve(database=database, routes=settings)
        yield Outage(server.kill, server.restart)
        server.restart()
    else:
        # Open files outlive their folder: so this process starts while the volume is not there.
        volume, elsewhere = tmp_path / "volume", tmp_path / "unmounted"
        volume.mkdir()
        backend.address = str(volume / "orders.db")
        backend.prepare()
        database = async_sqlite(backend.address) if backend.name in ASGI else SqliteDatabase(backend.address)
        backend.serve(database=database, routes=settings)
        yield Outage(lambda: volume.rename(elsewhere), lambda: elsewhere.rename(volume))


@pytest.mark.contract("C30")
def test_c30_a_store_that_is_down_is_an_answer_and_not_a_guess_and_it_comes_back(
    backend: Backend, outage: Outage
) -> None:
    if backend.is_postgres:  # connections that were open when the server died must not matter later
        assert backend.post(key='"before"').status == 201
    outage.down()
    refused = backend.post(key='"k"')
    assert (refused.status, refused.problem, refused.json["retryable"]) == (503, "store-unavailable", True)
    assert int(refused.header("retry-after") or 0) >= 1
    keyless = backend.post(key=None)
    assert (keyless.status, keyless.problem) == (503, "store-unavailable")
    status = backend.get("/onefold/status", query="operation=POST%20/orders", key='"k"')
    assert status.status == 503
    known = len(backend.calls)
    outage.up()
    back = backend.post(key='"k"')
    assert (back.status, back.replayed) == (201, False)
    assert backend.post(key='"k"').replayed
    assert len(backend.calls) == known + 1


@pytest.mark.contract("C30")
def test_c30_a_route_may_choose_to_run_unprotected(backend: Backend, outage: Outage) -> None:
    refusals: list[str] = []

    async def try_to_write(desk: Desk) -> None:
        try:
            await desk.execute("INSERT INTO orders (item) VALUES (:1)", "unprotected")
        except StoreUnavailable as error:
            refusals.append(str(error))

    outage.down()
    answers = [
        backend.post(key='"k"', method="PUT", plan=Plan(writes=False, acts=try_to_write, body=b"ran")) for _ in range(2)
    ]
    assert [(answer.status, answer.body, answer.replayed) for answer in answers] == [(201, b"ran", False)] * 2
    assert len(backend.calls) == len(refusals) == 2
    assert [event for event in backend.events if event == Claimed("PUT /orders", "unprotected")] == backend.events
    outage.up()
    assert backend.post(key='"k"', method="PUT").status == 201
    assert backend.post(key='"k"', method="PUT").replayed
    assert backend.rows() == ["book"]


@pytest.mark.contract("C30", backends=SQLITE)
@pytest.mark.parametrize("key", ['"k"', None], ids=["with a key", "without a key"])
def test_c30_a_file_that_someone_else_has_locked_is_a_503_that_may_be_retried(
    backend: Backend, key: str | None
) -> None:
    """The claim needs no write lock; it is the handler that does not get it."""
    backend.prepare()
    address = backend.address
    impatient = async_sqlite if backend.name in ASGI else SqliteDatabase
    backend.serve(database=impatient(address, busy_timeout_s=0.05))
    with contextlib.closing(sqlite3.connect(address, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        refused = backend.post(key=key)
        assert (refused.status, refused.problem, refused.json["retryable"]) == (503, "store-busy", True)
    assert backend.post(key=key).status == 201
    assert backend.rows() == ["book"]


@pytest.mark.contract("C34", backends=POSTGRES)
def test_c34_a_commit_whose_answer_is_lost_is_found(backend: Backend, proxy: CommitProxy) -> None:
    async def lose_the_answer(desk: Desk) -> None:
        proxy.lose_commit()

    answer = backend.post(key='"k"', plan=Plan(acts=lose_the_answer, body=b"committed"))
    assert proxy.traffic.cuts == 1
    assert (answer.status, answer.body) == (201, b"committed")
    assert backend.post(key='"k"').replayed
    assert backend.rows() == ["book"]
    assert len(backend.calls) == 1


@pytest.mark.contract("C34", backends=POSTGRES)
def test_c34_a_commit_that_never_arrived_is_a_503_that_may_be_retried(backend: Backend, proxy: CommitProxy) -> None:
    async def lose_the_commit(desk: Desk) -> None:
        proxy.cut_after("up", 0)

    answer = backend.post(key='"k"', plan=Plan(acts=lose_the_commit))
    assert proxy.traffic.cuts == 1
    assert (answer.status, answer.problem, answer.json["retryable"]) == (503, "store-unavailable", True)
    assert (backend.rows(), backend.records()) == ([], [])
    assert backend.post(key='"k"').status == 201
    assert backend.rows() == ["book"]


@pytest.mark.contract("C34", backends=POSTGRES)
def test_c34_a_commit_that_cannot_be_asked_about_is_said_to_be_unknown(backend: Backend, proxy: CommitProxy) -> None:
    async def lose_the_answer_and_the_server(desk: Desk) -> None:
        proxy.switch("refuse")
        proxy.lose_commit()

    answer = backend.post(key='"k"', plan=Plan(acts=lose_the_answer_and_the_server, body=b"committed"))
    assert (answer.status, answer.problem, answer.json["retryable"]) == (503, "outcome-unknown", True)
    backend.serve()  # another process, which can reach the server
    retry = backend.post(key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (201, b"committed", True)
    assert backend.rows() == ["book"]


@pytest.mark.contract("C34", backends=POSTGRES)
def test_c34_without_a_key_a_lost_commit_is_said_to_be_unknowable(backend: Backend, proxy: CommitProxy) -> None:
    async def lose_the_answer(desk: Desk) -> None:
        proxy.lose_commit()

    answer = backend.post(key=None, plan=Plan(acts=lose_the_answer))
    assert (answer.status, answer.problem, answer.json["retryable"]) == (503, "outcome-unknowable", False)


@pytest.mark.contract("C34", backends=POSTGRES)
def test_c34_a_connection_lost_before_the_commit_leaves_nothing(backend: Backend, proxy: CommitProxy) -> None:
    async def lose_everything(desk: Desk) -> None:
        proxy.switch("reset")
        proxy.heal()

    answer = backend.post(key='"k"', plan=Plan(acts=lose_everything))
    assert (answer.status, answer.problem) == (503, "store-unavailable")
    assert backend.post(key='"k"').status == 201
    assert backend.rows() == ["book"]
