"""Each trap of claiming and settling on Postgres, with the mistake planted beside the real thing.

Every test runs twice: with onefold's own statements it must hold, with the mistake put back it must be seen to break.
A test whose planted mistake goes unnoticed proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from onefold._idempotency import locked_store
from onefold._idempotency.locked_store import MISMATCH_PAUSES_S, LockedStore
from onefold._idempotency.model import Answer, Ask, Claim, InFlight, Mismatch, Replay, Run
from onefold._idempotency.schema import MIGRATIONS
from onefold._idempotency.sql import postgres
from onefold._kernel.effects import Boundary, Isolation, Statement
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.runners import run_async
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import ConnectionLost, SerializationFailed, TransactionMisused
from tests.support.patience import PATIENCE_S

CREATED = Answer(201, b"", b"made")


class Desk:
    """One request at the store, on a connection of its own."""

    def __init__(self, store: LockedStore, database: AsyncpgDatabase, ask: Ask) -> None:
        self.store = store
        self.executor: TaskExecutor[Any] = TaskExecutor(database)
        self.ask = ask
        self.run = Run()
        #: In the product every run stores an answer that tells it from all others.
        self.answer = CREATED

    async def claim(self) -> Claim:
        claim = await run_async(self.store.claim(self.ask), self.executor)
        if isinstance(claim, Run):
            self.run = claim
        return claim

    async def pay(self) -> None:
        await self.executor.connection.handle.execute("INSERT INTO payments VALUES (1)")

    async def settle(self, *, keep_rows: bool = True) -> Claim | None:
        return await run_async(self.store.settle(self.ask, self.run, self.answer, keep_rows=keep_rows), self.executor)

    async def release(self, *, touched: bool = False) -> None:
        await run_async(self.store.release(self.ask, self.run, touched=touched), self.executor)


class Backend:
    """A migrated database with a payments table."""

    def __init__(self, pool: asyncpg.Pool[asyncpg.Record]) -> None:
        self.pool = pool
        self.database = AsyncpgDatabase(pool)

    def desk(
        self,
        sql: Any = postgres,
        *,
        key: bytes = b"d" * 16,
        payload: str = "a",
        lease_s: float = 60.0,
        isolation: Isolation | None = None,
    ) -> Desk:
        ask = Ask(
            digest=key,
            fingerprint=payload.encode() * 16 if key == b"d" * 16 else key,
            operation="POST /payments",
            lease_s=lease_s,
            retention_s=3600.0,
            isolation=isolation,
        )
        return Desk(LockedStore(sql), self.database, ask)

    async def payments(self) -> int:
        return int(await self.pool.fetchval("SELECT count(*) FROM payments"))

    async def records(self) -> int:
        return int(await self.pool.fetchval("SELECT count(*) FROM onefold_record"))


@pytest.fixture
async def backend(postgres_dsn: str) -> AsyncIterator[Backend]:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=8) as pool:
        backend = Backend(pool)
        await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(backend.database))
        await pool.execute("CREATE TABLE payments (amount int)")
        yield backend


def planted(**changes: Callable[..., Statement]) -> Any:
    """onefold's statements with some of them replaced."""
    own = {name: getattr(postgres, name) for name in dir(postgres) if not name.startswith("__")}
    assert changes.keys() <= own.keys()
    return SimpleNamespace(**(own | changes))


# --- one snapshot ----------------------------------------------------------------------------------------

#: Held by the test until the other request has settled.
_GATE = 4242
_PAUSE = f"pg_advisory_xact_lock_shared({_GATE})"


def _slow_lock(ask: Ask) -> Statement:
    """The real lock, with a pause between its snapshot and the lock it takes."""
    real = postgres.lock(ask)
    return Statement(real.sql.replace("WHERE", f"WHERE {_PAUSE}::text IS NULL OR", 1), real.values)


def _slow_lock_that_looks(ask: Ask) -> Statement:
    """Lock and look in one statement: the look sees the world as it was before the lock."""
    real = _slow_lock(ask)
    looking = "set_config('t.seen', (SELECT count(*)::text FROM onefold_record), true)"
    return Statement(real.sql.replace("WHERE", f"WHERE {looking} IS NULL OR", 1), real.values)


def _look_at_what_the_lock_saw(ask: Ask) -> Statement:
    return Statement(
        "SELECT 1 WHERE current_setting('t.seen') <> '0' OR current_setting('onefold.refused', true) <> ''"
    )


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        pytest.param(planted(lock=_slow_lock), Replay, id="two-snapshots"),
        pytest.param(
            planted(lock=_slow_lock_that_looks, check_free=_look_at_what_the_lock_saw), Run, id="planted-one-snapshot"
        ),
    ],
)
async def test_a_claim_sees_what_was_settled_while_it_waited_for_its_lock(
    backend: Backend, sql: Any, expected: type
) -> None:
    first, second = backend.desk(), backend.desk(sql)
    assert isinstance(await first.claim(), Run)
    await first.pay()
    async with _gate(backend) as someone_waits:
        waiting = asyncio.create_task(second.claim())
        await someone_waits()
        assert await first.settle() is None
    claim = await waiting
    assert isinstance(claim, expected)
    if isinstance(claim, Run):
        await second.release()


# --- lock order ------------------------------------------------------------------------------------------


def _reversed_lock(ask: Ask) -> Statement:
    real = postgres.lock(ask)
    # The key first; refused there, the payload's lock tells the same request from another one.
    sql = """
    SELECT set_config('idle_in_transaction_session_timeout', $1::text, true),
           set_config('onefold.refused',
                      CASE WHEN pg_try_advisory_xact_lock($3::bigint) THEN ''
                           WHEN pg_try_advisory_xact_lock($2::bigint) THEN 'other'
                           ELSE 'same' END, true)
    """
    return Statement(sql, real.values)


def _payload_then_key(ask: Ask) -> list[int]:
    return [*ask.request_locks, ask.key_lock]


def _key_then_payload(ask: Ask) -> list[int]:
    return [ask.key_lock, *ask.request_locks]


@pytest.mark.parametrize(
    ("sql", "order", "false_mismatch"),
    [
        pytest.param(postgres, _payload_then_key, False, id="payload-then-key"),
        pytest.param(planted(lock=_reversed_lock), _key_then_payload, True, id="planted-key-then-payload"),
    ],
)
async def test_an_equal_request_that_has_only_begun_to_lock_is_never_called_a_mismatch(
    backend: Backend, sql: Any, order: Callable[[Ask], list[int]], false_mismatch: bool
) -> None:
    seen = []
    for held in (1, 2):
        desk = backend.desk(sql)
        locks = order(desk.ask)
        assert len(locks) == 2
        async with backend.pool.acquire() as other, other.transaction():
            for lock in locks[:held]:
                await other.execute("SELECT pg_advisory_xact_lock($1)", lock)
            seen.append(await desk.claim())
    assert any(isinstance(claim, Mismatch) for claim in seen) == false_mismatch
    assert isinstance(seen[-1], InFlight), "with both locks held by an equal request"


async def test_another_payload_in_flight_is_a_mismatch_and_not_in_flight(backend: Backend) -> None:
    first, other = backend.desk(payload="a"), backend.desk(payload="b")
    assert isinstance(await first.claim(), Run)
    assert isinstance(await other.claim(), Mismatch)
    await first.release()
    assert isinstance(await other.claim(), Run)
    await other.release()


@pytest.mark.parametrize(
    ("pauses", "false_mismatch"), [pytest.param((0.0,), True, id="looks again at once"), (MISMATCH_PAUSES_S, False)]
)
async def test_a_request_that_meets_the_end_of_an_equal_one_is_no_mismatch_though_locks_go_one_by_one(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, pauses: tuple[float, ...], false_mismatch: bool
) -> None:
    monkeypatch.setattr(locked_store, "MISMATCH_PAUSES_S", pauses)
    desk = backend.desk()
    async with backend.pool.acquire() as ending:
        await ending.execute("SELECT pg_advisory_lock($1)", desk.ask.key_lock)  # the other of its locks is gone

        async def end(executor: TaskExecutor[Any], seconds: float) -> None:
            if seconds:
                await ending.execute("SELECT pg_advisory_unlock_all()")

        monkeypatch.setattr(TaskExecutor, "sleep", end)
        claim = await desk.claim()
        await ending.execute("SELECT pg_advisory_unlock_all()")
    assert isinstance(claim, Mismatch if false_mismatch else Run)
    await desk.release()


async def test_a_request_that_waits_to_look_again_holds_no_lock_that_an_equal_one_wants(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = backend.desk()
    [request_lock] = desk.ask.request_locks
    free: list[bool] = []
    async with backend.pool.acquire() as other, other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock($1)", desk.ask.key_lock)

        async def look(executor: TaskExecutor[Any], seconds: float) -> None:
            free.append(await other.fetchval("SELECT pg_try_advisory_lock($1)", request_lock))
            await other.execute("SELECT pg_advisory_unlock($1)", request_lock)

        monkeypatch.setattr(TaskExecutor, "sleep", look)
        assert isinstance(await desk.claim(), Mismatch)
    assert free == [True] * len(MISMATCH_PAUSES_S)


# --- the loser's COMMIT ----------------------------------------------------------------------------------


def _lock_nothing(ask: Ask) -> Statement:
    """As if two requests had got past the locks: the table is all that stands between them."""
    return Statement("SELECT")


def _settle_quietly(ask: Ask, answer: Answer) -> Statement:
    real = postgres.settle(ask, answer)
    return Statement(real.sql + " ON CONFLICT (digest) DO NOTHING", real.values)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        pytest.param(planted(lock=_lock_nothing), 1, id="the-table-refuses"),
        pytest.param(planted(lock=_lock_nothing, settle=_settle_quietly), 2, id="planted-row-count-after-commit"),
    ],
)
async def test_the_loser_of_a_race_keeps_no_rows_even_without_locks(backend: Backend, sql: Any, rows: int) -> None:
    winner, loser = backend.desk(sql), backend.desk(sql)
    for desk in (winner, loser):
        assert isinstance(await desk.claim(), Run)
        await desk.pay()
    assert await winner.settle() is None
    lost_to = await loser.settle()
    assert await backend.payments() == rows
    if rows == 1:
        assert isinstance(lost_to, Replay)
        assert lost_to.record.answer == CREATED


# --- a peer that stopped ---------------------------------------------------------------------------------


def _lock_without_lease(ask: Ask) -> Statement:
    real = postgres.lock(ask)
    return Statement(real.sql.replace("$1::pg_catalog.text", "'0' || left($1::text, 0)"), real.values)


@pytest.mark.parametrize(
    ("sql", "freed"),
    [
        pytest.param(postgres, True, id="leased"),
        pytest.param(planted(lock=_lock_without_lease), False, id="planted-no-lease"),
    ],
)
async def test_a_peer_that_stopped_holds_its_key_no_longer_than_its_lease(
    backend: Backend, sql: Any, freed: bool
) -> None:
    stopped, retry = backend.desk(sql, lease_s=0.3), backend.desk(sql)
    stopped.answer = Answer(201, b"another run", b"made")
    assert isinstance(await stopped.claim(), Run)
    await stopped.pay()
    assert isinstance(await retry.claim(), InFlight)
    await asyncio.sleep(0.8)  # longer than the lease: this is about real time passing on the server
    claim = await retry.claim()
    assert isinstance(claim, Run if freed else InFlight)
    if freed:
        await retry.pay()
        assert await retry.settle() is None
        # The stopped one wakes up: its rows are gone, and it is told what happened instead.
        lost_to = await stopped.settle()
        assert isinstance(lost_to, Replay)
        assert lost_to.record.answer == CREATED
    else:
        await stopped.release()
    assert await backend.payments() == (1 if freed else 0)


# --- a swallowed SQL error -------------------------------------------------------------------------------


async def test_an_sql_error_that_the_handler_swallowed_stores_nothing_and_says_so(backend: Backend) -> None:
    desk = backend.desk()
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    with pytest.raises(asyncpg.UndefinedTableError):
        await desk.executor.connection.handle.execute("INSERT INTO nowhere VALUES (1)")
    with pytest.raises(TransactionMisused, match="swallowed an SQL error"):
        await desk.settle()
    assert (await backend.payments(), await backend.records()) == (0, 0)


async def test_control_a_bare_commit_of_an_aborted_transaction_reports_no_error(backend: Backend) -> None:
    """Why the record's INSERT stands in front of COMMIT: alone, COMMIT answers ROLLBACK and nobody notices."""
    async with backend.pool.acquire() as connection:
        await connection.execute("BEGIN; INSERT INTO payments VALUES (1)")
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.execute("INSERT INTO nowhere VALUES (1)")
        assert await connection.execute("COMMIT") == "ROLLBACK"
    assert await backend.payments() == 0


async def test_a_refusal_after_an_sql_error_is_stored_because_its_rows_are_rolled_back_anyway(backend: Backend) -> None:
    desk = backend.desk()
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    with pytest.raises(asyncpg.UndefinedTableError):
        await desk.executor.connection.handle.execute("INSERT INTO nowhere VALUES (1)")
    assert await desk.settle(keep_rows=False) is None
    assert (await backend.payments(), await backend.records()) == (0, 1)


async def test_where_there_is_a_timeout_for_transactions_the_lease_bounds_a_busy_handler_too(backend: Backend) -> None:
    desk = backend.desk(lease_s=0.2)
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await desk.executor.connection.handle.execute("SELECT pg_sleep(30)")
    with pytest.raises(ConnectionLost, match=r"lease_s=0\.2"):
        await desk.release(touched=True)
    assert (await backend.payments(), await backend.records()) == (0, 0)


# --- a commit behind our back ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "COMMIT; BEGIN; SAVEPOINT its_own"]
)
async def test_a_handler_that_ends_the_transaction_itself_is_refused(backend: Backend, words: str) -> None:
    desk = backend.desk()
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    await desk.executor.connection.handle.execute(words)
    with pytest.raises(TransactionMisused, match="by itself"):
        await desk.settle()
    assert await backend.records() == 0


@pytest.mark.parametrize("words", ["COMMIT", "COMMIT; BEGIN"])
async def test_a_handler_that_commits_and_then_fails_does_not_go_unnoticed(backend: Backend, words: str) -> None:
    desk = backend.desk()
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    await desk.executor.connection.handle.execute(words)
    with pytest.raises(TransactionMisused, match="by itself"):
        await desk.release(touched=True)
    assert (await backend.payments(), await backend.records()) == (1, 0)


@pytest.mark.parametrize("words", ["SELECT 1", "SELECT 1/0"], ids=["intact", "aborted"])
async def test_a_handler_that_fails_in_its_transaction_is_released_without_a_word(backend: Backend, words: str) -> None:
    desk = backend.desk()
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    with suppress(asyncpg.PostgresError):
        await desk.executor.connection.handle.execute(words)
    await desk.release(touched=True)
    assert (await backend.payments(), await backend.records()) == (0, 0)


async def test_control_without_the_proof_a_handler_s_commit_goes_unnoticed(backend: Backend) -> None:
    desk = backend.desk()
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    await desk.executor.connection.handle.execute("COMMIT; BEGIN")
    await desk.executor.batch((postgres.settle(desk.ask, CREATED), Boundary.COMMIT))
    await desk.executor.release()
    assert await backend.records() == 1


# --- stricter isolation ----------------------------------------------------------------------------------


strict_levels = pytest.mark.parametrize("level", ["repeatable read", "serializable"])


@strict_levels
@pytest.mark.parametrize(
    ("sql", "twice"),
    [
        pytest.param(planted(lock=_slow_lock), False, id="onefold"),
        pytest.param(
            planted(lock=_slow_lock, reserve=postgres.check_free), True, id="planted-look-with-an-old-snapshot"
        ),
    ],
)
async def test_what_was_committed_between_snapshot_and_lock_is_not_run_again(
    backend: Backend, level: Isolation, sql: Any, twice: bool
) -> None:
    first, second = backend.desk(isolation=level), backend.desk(sql, isolation=level)
    assert isinstance(await first.claim(), Run)
    await first.pay()
    async with _gate(backend) as someone_waits:
        waiting = asyncio.create_task(second.claim())
        await someone_waits()
        assert await first.settle() is None
    claim = await waiting
    assert isinstance(claim, Run) is twice
    if twice:  # the record's primary key is what is left, but the handler has run
        await second.pay()
        assert isinstance(await second.settle(), Replay)
    else:
        assert isinstance(claim, Replay)
        assert claim.record.answer == CREATED
    assert (await backend.payments(), await backend.records()) == (1, 1)


@strict_levels
async def test_what_is_stored_under_an_earlier_name_is_found_in_one_snapshot_too(
    backend: Backend, level: Isolation
) -> None:
    old = backend.desk(isolation=level, key=b"e" * 16)
    assert isinstance(await old.claim(), Run)
    new = backend.desk(planted(lock=_slow_lock), isolation=level, key=b"n" * 16)
    new.ask = new.ask._replace(earlier=(b"e" * 16, b"f" * 16), signposts=(b"e" * 16,), same=lambda record: True)
    async with _gate(backend) as someone_waits:
        waiting = asyncio.create_task(new.claim())
        await someone_waits()
        assert await old.settle() is None
    assert isinstance(await waiting, Replay)
    await backend.pool.execute("DELETE FROM onefold_record")
    assert isinstance(await new.claim(), Run)
    assert await new.settle() is None
    live = "SELECT digest, status FROM onefold_record WHERE expires_at > now() ORDER BY status"
    assert [tuple(row) for row in await backend.pool.fetch(live)] == [(b"e" * 16, 0), (b"n" * 16, 201)]


async def _chosen_by_database(backend: Backend, level: str) -> None:
    name = await backend.pool.fetchval("SELECT current_database()")
    await backend.pool.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'")
    await backend.pool.expire_connections()


@strict_levels
async def test_the_level_that_the_database_chose_is_found_out_and_kept(backend: Backend, level: str) -> None:
    await _chosen_by_database(backend, level)
    first, second = backend.desk(), backend.desk(planted(lock=_slow_lock))
    assert isinstance(await first.claim(), Run)
    handle = first.executor.connection.handle
    assert await handle.fetchval("SELECT current_setting('transaction_isolation')") == level
    async with _gate(backend) as someone_waits:
        waiting = asyncio.create_task(second.claim())
        await someone_waits()
        assert await first.settle() is None
    assert isinstance(await waiting, Replay)
    third = backend.desk()
    assert isinstance(await third.claim(), Replay)


@strict_levels
async def test_a_stricter_transaction_may_store_a_refusal_and_forgets_what_expired(
    backend: Backend, level: str
) -> None:
    await _chosen_by_database(backend, level)
    for _ in range(2):
        desk = backend.desk()
        assert isinstance(await desk.claim(), Run)
        await desk.pay()
        assert await desk.settle(keep_rows=False) is None
        assert (await backend.payments(), await backend.records()) == (0, 1)
        assert isinstance(await backend.desk().claim(), Replay)
        await backend.pool.execute("UPDATE onefold_record SET expires_at = now() - interval '1 s'")


@strict_levels
async def test_a_handler_that_commits_by_itself_is_found_out_and_its_key_stays_free(
    backend: Backend, level: str
) -> None:
    await _chosen_by_database(backend, level)
    desk = backend.desk()
    assert isinstance(await desk.claim(), Run)
    await desk.pay()
    await desk.executor.connection.handle.execute("COMMIT")
    with pytest.raises(TransactionMisused):
        await desk.settle()
    again = backend.desk()
    assert isinstance(await again.claim(), Run)
    await again.release()


@pytest.mark.parametrize(
    ("sql", "failed"),
    [
        pytest.param(postgres, 0, id="onefold"),
        pytest.param(planted(reserve=postgres.check_free), 5, id="planted-look-that-leaves-a-trace"),
    ],
)
async def test_serializable_requests_that_have_nothing_in_common_do_not_disturb_each_other(
    backend: Backend, sql: Any, failed: int
) -> None:
    desks = [backend.desk(sql, isolation="serializable", key=bytes([number]) * 16) for number in range(6)]
    assert [isinstance(await desk.claim(), Run) for desk in desks] == [True] * 6
    for desk in desks:
        await desk.pay()
    ends = [await asyncio.gather(desk.settle(), return_exceptions=True) for desk in desks]
    assert sum(isinstance(end, SerializationFailed) for [end] in ends) == failed
    assert await backend.payments() == await backend.records() == 6 - failed


@asynccontextmanager
async def _gate(backend: Backend) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Whoever pauses waits until the block ends. What it yields waits until someone pauses."""

    async def someone_waits() -> None:
        async with asyncio.timeout(PATIENCE_S):
            waiting = 0
            while waiting == 0:
                waiting = await connection.fetchval(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                )

    async with backend.pool.acquire() as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", _GATE)
        yield someone_waits
        await connection.execute("SELECT pg_advisory_unlock($1)", _GATE)
