"""What DBOS leaves to others: see `_engines/dbos/__init__.py`."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from dbos import DBOS
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onefold._engines.dbos import takeover as takeover_module
from onefold._engines.dbos.executor_locks import FileLocks, SessionLocks, number_of
from onefold._engines.dbos.saga_database import SagaDatabase
from onefold._engines.dbos.takeover import Takeover
from onefold.errors import ConfigurationError, StoreBusy
from onefold.sagas import Abort, Compensated, Saga, saga
from onefold.sagas.dbos import Dbos
from tests.saga.conformance.cases import recorded, until
from tests.saga.conformance.sagas import QUICK, RETRY, SAGAS, WORLD, charge, order, patient, refund, release, reserve
from tests.support.patience import PATIENCE_S


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'sagas.db'}"


def opened(url: str, *sagas: Any, **settings: Any) -> Dbos:
    return Dbos(url, sagas=sagas or SAGAS, takeover_s=0.1, **settings)


async def test_a_second_engine_in_one_process_is_refused(url: str, tmp_path: Path) -> None:
    async with opened(url):
        with pytest.raises(ConfigurationError, match="one per process"):
            async with opened(f"sqlite:///{tmp_path / 'other.db'}"):
                pass
    with pytest.raises(ConfigurationError, match="is not open"):
        await opened(url).status("x")


async def test_a_dbos_of_the_applications_own_is_left_alone(url: str, tmp_path: Path) -> None:
    theirs = DBOS(config={"name": "theirs", "system_database_url": f"sqlite:///{tmp_path / 'theirs.db'}"})
    await asyncio.to_thread(theirs.launch)
    try:
        with pytest.raises(ConfigurationError, match="the application's own"):
            async with opened(url):
                pass
        assert await asyncio.to_thread(DBOS.list_workflows) == []
    finally:
        await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    async with opened(url):
        pass


async def test_a_lock_file_that_cannot_be_locked_takes_no_process_for_dead(url: str, tmp_path: Path) -> None:
    (tmp_path / "sagas.db-executors").mkdir()
    locks = FileLocks(SagaDatabase(url), "own")
    with pytest.raises(ConfigurationError, match="cannot be distinguished from dead ones"):
        locks.take("other")
    with pytest.raises(ConfigurationError, match="cannot be distinguished from dead ones"):
        async with opened(url):
            pass


def test_an_executor_id_that_another_process_has_is_told(url: str, tmp_path: Path) -> None:
    path, byte = tmp_path / "sagas.db-executors", number_of("own")
    lock = (
        f"import fcntl, sys; f = open({str(path)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX, 1, {byte}); print(flush=True)"
    )
    locks = FileLocks(SagaDatabase(url), "own")
    with subprocess.Popen(
        [sys.executable, "-S", "-c", f"{lock}; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with pytest.raises(StoreBusy, match="the lock of executor own is held"):
            locks.hold()
        other.stdin.close()
    locks.hold()
    locks.hold()  # once more, as every look does
    locks.close()


async def test_any_number_of_running_sagas_is_looked_at_page_by_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_module, "_PAGE", 2)
    executors = ["live", "live", "live", "dead-1", "own", "live", "dead-2"]

    class Looks(Takeover):
        async def _running(self, executor: str | None = None, *, offset: int = 0) -> list[Any]:
            found = [SimpleNamespace(executor_id=name) for name in executors if executor in (None, name)]
            return found[offset : offset + 2]

    class Locks(FileLocks):
        asked: ClassVar[list[str]] = []

        def take(self, executor: str) -> bool:
            self.asked.append(executor)
            return False

    locks = Locks(SagaDatabase(url), "own")
    looks = Looks(locks, own="own", workflows=["a@1"], every_s=1)
    for _ in range(4):
        await looks.look()
    assert locks.asked == ["live", "dead-1", "live", "live", "dead-2"]
    await looks.look()
    assert locks.asked[5:] == ["live"]  # from the first page again
    locks.close()


async def test_looking_for_dead_processes_goes_on_after_any_error(caplog: pytest.LogCaptureFixture) -> None:
    looks: queue.Queue[None] = queue.Queue()

    class Broken(FileLocks):
        def __init__(self) -> None:
            pass

        def hold(self) -> None:
            looks.put(None)
            raise OSError("no more descriptors")

    looking = asyncio.ensure_future(Takeover(Broken(), own="own", workflows=["a@1"], every_s=0.01).run())
    for _ in range(3):
        await asyncio.to_thread(looks.get, timeout=PATIENCE_S)
    assert looking.cancel()
    assert "executor own could not look for sagas of dead processes (no more descriptors)" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Dbos("sqlite://", sagas=[order]), "they need a file"),
        (lambda: Dbos("sqlite:///:memory:", sagas=[order]), "they need a file"),
        (lambda: Dbos("mysql://a:secret@b/c", sagas=[order]), "mysql keeps no sagas"),
        (lambda: Dbos("sagas.db", sagas=[order]), "write sqlite:///sagas.db"),
        (lambda: Dbos("sqlite:///x.db", sagas=[order], name="a b"), "name of the application"),
        (lambda: Dbos("sqlite:///x.db", sagas=[order], takeover_s=0), "takeover_s"),
        (lambda: Dbos("sqlite:///x.db", sagas=[order], database="x"), "SQLAlchemy Engine or AsyncEngine"),  # type: ignore[arg-type]
        (lambda: Dbos("sqlite:///x.db"), "is missing sagas"),  # type: ignore[call-arg]
    ],
)
def test_a_wrong_setting_is_told(wrong: Callable[[], Dbos], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as raised:
        wrong()
    assert "secret" not in str(raised.value)


async def test_the_file_is_wal_and_nothing_in_it_is_a_pickle(url: str, tmp_path: Path) -> None:
    async with opened(url) as engine:
        await engine.start(patient, "format", {"item": "book"})
        await engine.signal("format", "paid", {"by": "card"})
        await engine.result("format", timeout_s=PATIENCE_S)
    with closing(sqlite3.connect(tmp_path / "sagas.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        formats = {
            each
            for table in ("workflow_status", "operation_outputs", "notifications")
            for (each,) in db.execute(f"SELECT serialization FROM {table}")
        }
    assert formats == {"portable_json"}


async def test_the_event_loop_has_its_threads_after_the_engine_is_closed(url: str) -> None:
    async with opened(url) as engine:
        await engine.start(order, "threads-after", {"item": "book"})
        await engine.result("threads-after", timeout_s=PATIENCE_S)
    assert await asyncio.to_thread(lambda: "alive") == "alive"


async def test_a_saga_that_is_closed_in_a_pause_goes_on_when_it_is_opened(url: str) -> None:
    async with opened(url) as engine:
        await engine.start(patient, "closed", {"item": "book", "sleep_s": 0.5})
        await recorded(engine, "closed", "reserve")
    async with opened(url) as engine:
        await engine.signal("closed", "paid", 1)
        assert await engine.result("closed", timeout_s=PATIENCE_S) == 1
    assert WORLD.of("closed") == ["reserve", "ship"]


async def test_the_history_has_a_pause_once_and_takes_no_wait_for_one(url: str) -> None:
    """Each is two records of DBOS, a message that is waited for and a time limit."""

    async with opened(url) as engine:
        await engine.start(patient, "pauses", {"item": "book", "sleep_s": 0.1, "waits": False})
        await engine.start(patient, "waits", {"item": "book"})
        await engine.signal("waits", "paid")
        for saga_id, between in (("pauses", ("sleep", "")), ("waits", ("signal", "paid"))):
            await engine.result(saga_id, timeout_s=PATIENCE_S)
            history = [(entry.kind, entry.name) for entry in await engine.history(saga_id)]
            assert history == [("step", "reserve"), between, ("step", "ship")]


async def test_a_definition_that_changed_under_a_running_saga_stops_it_until_it_fits_again(url: str) -> None:
    async with opened(url) as engine:
        await engine.start(patient, "changed-under", {"item": "book"})
        await recorded(engine, "changed-under", "reserve")

    @saga("conformance-patient", undo_retry=RETRY, undo_pause=QUICK)
    async def changed(s: Saga, o: dict[str, Any]) -> None:
        try:
            await s.step("charge", charge, o, undo=refund, retry=RETRY)
            await s.step("reserve", reserve, o, undo=release, retry=RETRY)
        except Exception:
            WORLD.act("caught", o)

    async with opened(url, changed) as engine:
        status = await until(engine, "changed-under", "stopped")
        assert "recorded when charge was expected" in str(status.error)
        assert not status.cancelled
    assert WORLD.of("changed-under") == ["reserve"]
    async with opened(url) as engine:
        await engine.signal("changed-under", "paid", "after all")
        await until(engine, "changed-under", "running", "completed")  # until it is resumed, it is shown as it stopped
        assert await engine.result("changed-under", timeout_s=PATIENCE_S) == "after all"
    assert WORLD.of("changed-under") == ["reserve", "ship"]


@pytest.mark.parametrize("aborts", [False, True], ids=["ends", "aborts"])
async def test_a_definition_that_ends_before_its_journal_stops_until_it_fits_again(url: str, aborts: bool) -> None:
    saga_id = f"shortened-{aborts}"

    @saga("shortened", undo_retry=RETRY, undo_pause=QUICK)
    async def whole(s: Saga, o: dict[str, Any]) -> None:
        await s.step("reserve", reserve, o, undo=release, retry=RETRY)
        await s.step("charge", charge, o, undo=refund, retry=RETRY)
        await s.wait("never")

    @saga("shortened", undo_retry=RETRY, undo_pause=QUICK)
    async def shortened(s: Saga, o: dict[str, Any]) -> None:
        await s.step("reserve", reserve, o, undo=release, retry=RETRY)
        if aborts:
            raise Abort("the shop is closed")

    async with opened(url, whole) as engine:
        await engine.start(whole, saga_id, {"item": "book"})
        await recorded(engine, saga_id, "charge")
    async with opened(url, shortened) as engine:
        status = await until(engine, saga_id, "stopped", "completed", "compensated")
        assert (status.state, "charge was recorded" in str(status.error)) == ("stopped", True)
    assert WORLD.of(saga_id) == ["reserve", "charge"]
    async with opened(url, whole) as engine:
        assert await engine.cancel(saga_id)
        with pytest.raises(Compensated):
            await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert WORLD.of(saga_id) == ["reserve", "charge", "refund", "release"]


async def test_steps_may_be_called_as_dbos_calls_its_own(url: str) -> None:
    names = ["DBOS.recv", "DBOS.sleep", "sleep", "a#2"]

    @saga("named")
    async def named(s: Saga, o: dict[str, Any]) -> None:
        for name in names:
            await s.step(name, reserve, o)
        await s.wait("never")

    async with opened(url, named) as engine:
        await engine.start(named, "named", {"item": "book"})
        await recorded(engine, "named", names[-1])
        history = await engine.history("named")
        assert [(entry.kind, entry.name) for entry in history][: len(names)] == [("step", name) for name in names]
        assert [status.state for status in await engine.list()] == ["running"]


async def test_a_new_version_leaves_old_sagas_to_their_own_code(url: str) -> None:
    @saga("conformance-patient", version="2", undo_retry=RETRY, undo_pause=QUICK)
    async def newer(s: Saga, o: dict[str, Any]) -> str:
        await s.step("charge", charge, o, undo=refund, retry=RETRY)
        return "new"

    async with opened(url) as engine:
        await engine.start(patient, "old", {"item": "book"})
        await recorded(engine, "old", "reserve")
    async with opened(url, newer) as engine:  # which has no code for it, and must not touch it
        await engine.start(newer, "new", {"item": "book"})
        assert await engine.result("new", timeout_s=PATIENCE_S) == "new"
        await engine.signal("old", "paid", "old")
        assert (await engine.status("old")).state == "running"
    async with opened(url, newer, patient) as engine:
        assert await engine.result("old", timeout_s=PATIENCE_S) == "old"
    assert WORLD.of("old") == ["reserve", "ship"]


async def test_what_dbos_cancels_by_itself_is_shown_as_stopped(url: str) -> None:
    from dbos import DBOS

    async with opened(url) as engine:
        await engine.start(patient, "foreign", {"item": "book"})
        await recorded(engine, "foreign", "reserve")
        await DBOS.cancel_workflow_async("foreign")
        status = await engine.status("foreign")
        assert (status.state, "CANCELLED" in str(status.error)) == ("stopped", True)
        assert WORLD.of("foreign") == ["reserve"]
        assert await engine.cancel("foreign")
        with pytest.raises(Compensated):
            await engine.result("foreign", timeout_s=PATIENCE_S)
    assert WORLD.of("foreign") == ["reserve", "release"]


async def test_a_saga_can_be_started_from_a_step_of_another(url: str) -> None:
    opened_engines: list[Dbos] = []

    async def begin(o: dict[str, Any]) -> bool:
        return await opened_engines[0].start(order, "inner", o)

    @saga("outer")
    async def outer(s: Saga, o: dict[str, Any]) -> Any:
        return await s.step("begin", begin, o)

    async with opened(url, outer, order) as engine:
        opened_engines.append(engine)
        await engine.start(outer, "outer", {"item": "book"})
        assert await engine.result("outer", timeout_s=PATIENCE_S) is True
        assert (await engine.result("inner", timeout_s=PATIENCE_S))["shipped"] == "shipped"


async def test_a_lost_session_takes_its_lock_again(postgres_dsn: str) -> None:
    import psycopg

    locks, other = (SessionLocks(SagaDatabase(postgres_dsn), name) for name in ("own", "other"))
    locks.hold()
    other.hold()
    assert not other.take("own")
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    other.hold()
    assert other.take("own")  # until it notices, it counts as dead
    other.give_back("own")
    locks.hold()
    assert not other.take("own")
    for each in (locks, other):
        each.close()


# A step in the user's own transaction


TABLE = "CREATE TABLE stock (free INTEGER NOT NULL CHECK (free >= 0))"


@asynccontextmanager
async def shop(tmp_path: Path, colour: str) -> AsyncIterator[sa.Engine | AsyncEngine]:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(TABLE)
        db.execute("INSERT INTO stock VALUES (1)")
        db.commit()
    if colour == "async":
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        yield engine
        await engine.dispose()
    else:
        plain = sa.create_engine(f"sqlite:///{path}")
        yield plain
        plain.dispose()


def free(tmp_path: Path) -> int:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        (count,) = db.execute("SELECT free FROM stock").fetchone()
    return int(count)


TAKE, GIVE = sa.text("UPDATE stock SET free = free - 1"), sa.text("UPDATE stock SET free = free + 1")


def take(session: Session, o: dict[str, Any]) -> str:
    session.execute(TAKE)
    if o.get("abort"):
        raise Abort("not today")
    return "taken"


def give(session: Session, o: dict[str, Any]) -> None:
    session.execute(GIVE)


async def take_async(session: AsyncSession, o: dict[str, Any]) -> str:
    await session.execute(TAKE)
    if o.get("abort"):
        raise Abort("not today")
    return "taken"


async def give_async(session: AsyncSession, o: dict[str, Any]) -> None:
    await session.execute(GIVE)


@saga("stock", undo_retry=RETRY, undo_pause=QUICK)
async def stock(s: Saga, o: dict[str, Any]) -> Any:
    do, undo = (take_async, give_async) if o["colour"] == "async" else (take, give)
    taken = await s.tx("take", do, o, retry=RETRY, undo=None if o.get("abort") else undo)
    if o.get("twice"):
        await s.tx("again", do, o, retry=RETRY)
    return taken


@pytest.mark.parametrize("colour", ["async", "threads"])
async def test_a_transaction_commits_with_its_record_or_not_at_all(url: str, tmp_path: Path, colour: str) -> None:
    async with shop(tmp_path, colour) as database, opened(url, stock, database=database) as engine:
        await engine.start(stock, "aborts", {"colour": colour, "abort": True})
        with pytest.raises(Compensated, match="not today"):
            await engine.result("aborts", timeout_s=PATIENCE_S)
        assert free(tmp_path) == 1
        await engine.start(stock, "refused", {"colour": colour, "twice": True})
        with pytest.raises(Compensated, match="CHECK constraint"):  # and what it had taken is given back
            await engine.result("refused", timeout_s=PATIENCE_S)
        assert free(tmp_path) == 1
        await engine.start(stock, "takes", {"colour": colour})
        assert await engine.result("takes", timeout_s=PATIENCE_S) == "taken"
        assert free(tmp_path) == 0
        history = [(entry.kind, entry.name, bool(entry.error)) for entry in await engine.history("refused")]
        assert history[0] == ("step", "take", False)
        assert ("step", "again", True) in history
        assert history[-1] == ("undo", "take", False)


@saga("shut", undo_retry=RETRY, undo_pause=QUICK)
async def shut(s: Saga, o: dict[str, Any]) -> None:
    await s.tx("take", take, o, retry=RETRY, undo=fail_to_give)
    raise Abort("no more")


CLOSED, REFUSALS = threading.Event(), queue.Queue[int]()


def fail_to_give(session: Session, o: dict[str, Any]) -> None:
    if CLOSED.is_set():
        REFUSALS.put(1)
        raise OSError("the warehouse is closed")
    session.execute(GIVE)


async def test_a_compensation_in_a_transaction_that_keeps_failing_is_told(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    CLOSED.set()
    async with shop(tmp_path, "threads") as database, opened(url, shut, database=database) as engine:
        await engine.start(shut, "s-1", {})
        refused = 0
        while refused <= RETRY.attempts_max:  # into the second round
            refused += await asyncio.to_thread(REFUSALS.get, timeout=PATIENCE_S)
        assert "the warehouse is closed" in str((await engine.status("s-1")).error)
        CLOSED.clear()
        with pytest.raises(Compensated):
            await engine.result("s-1", timeout_s=PATIENCE_S)
    assert "saga s-1 is stuck: the compensation of step take failed in round 1" in caplog.text
    assert free(tmp_path) == 1


async def test_what_two_people_do_at_once_is_in_the_history(url: str) -> None:
    async with opened(url) as engine:
        await engine.start(patient, "s-1", {})
        people = [f"person-{number}" for number in range(4)]
        await asyncio.gather(*[engine.audit("s-1", action="retry", actor=name) for name in people])
        noted = [entry.result for entry in await engine.history("s-1") if entry.kind == "action"]
        assert sorted(noted) == people


async def test_a_transaction_without_a_database_or_of_the_other_colour_stops(url: str, tmp_path: Path) -> None:
    async with opened(url, stock) as engine:
        await engine.start(stock, "bare", {"colour": "async"})
        assert "Dbos(..., database=engine)" in str((await until(engine, "bare", "stopped")).error)
    async with shop(tmp_path, "threads") as database, opened(url, stock, database=database) as engine:
        await engine.start(stock, "colour", {"colour": "async"})
        assert "must be a `def`" in str((await until(engine, "colour", "stopped")).error)


OPENS = """
import asyncio, sys
from onefold.sagas.dbos import Dbos
from tests.saga.conformance.sagas import SAGAS

async def main():
    engine = Dbos(sys.argv[1], sagas=SAGAS[:1])
    print("ready", flush=True)
    sys.stdin.readline()
    async with engine:
        print("open", flush=True)

asyncio.run(main())
"""


def test_processes_that_open_a_new_file_at_the_same_moment_make_its_tables_in_turn(url: str) -> None:
    command = [sys.executable, "-c", OPENS, url]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT) for _ in range(3)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert said == ["open\n"] * 3
