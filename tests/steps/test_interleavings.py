"""A request that was left, its client's retry and the completer, interleaved effect by effect: whatever the order, each
step takes place once, under one key, and all of them end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from onefold._http.stepped_store import RequestWork, SteppedStore
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import Answer, Ask, Run
from onefold._idempotency.sql import sqlite
from onefold._kernel.checkout import rollback_and_release, with_connection
from onefold._kernel.effects import Acquire, Batch, Boundary, Effect, Flow, Now, Release, Sleep, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import Database
from onefold._kernel.runners import run
from onefold._kernel.transaction import no_outbox
from onefold._steps.completer import Completer, CompleterConfig, CompletionAttempt
from onefold._steps.model import Held, WorkClaim
from onefold._steps.sealing import Sealing
from onefold._steps.step_order import StepOptions
from onefold._steps.works import Works
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import OnefoldError, StoreBusy
from tests.steps.places import Place, create_tables, place_at
from tests.support.schedules import Choices, Stepper, VirtualExecutor, every_schedule, interleave

LIMIT = 20_000


class NoBeats:
    """Leases end when a schedule says so."""

    def hold(self, work: Held) -> None: ...
    def drop(self, work: Held) -> None: ...


class Stage:
    """One database, and what must hold of each request to it."""

    def __init__(self, database: Database[Any], place: Place, works: Works) -> None:
        self.database = database
        self.place = place
        self.works = works
        self.number = 0
        self.charges: list[bytes] = []
        keys = LockedStore() if database.dialect == "postgres" else LockedStore(sqlite)
        self.shared = SteppedStore(keys, works, NoBeats(), Sealing())
        config = CompleterConfig(abandoned_after_s=0.0)
        self.completer = Completer(database.dialect, lambda work: None, config=config, draw=lambda: 0.0)

    @property
    def ask(self) -> Ask:
        digest = self.number.to_bytes(16, "big")
        return Ask(digest, b"f" * 32, "POST /rides", 60.0, 1e9)

    async def request(self, executor: ThreadExecutor[Any], *, resumed: bool = False, breaks: bool = False) -> str:
        """What the layer does with one request, effect by effect."""
        work, ask = RequestWork(self.shared, b"request", is_resumed=resumed), self.ask
        claim = await work.claim(ask)
        if not isinstance(claim, Run):
            return type(claim).__name__
        held = work._held
        assert held is not None
        guarded: Any = SimpleNamespace(
            operation=ask.operation, tx=OwnedTransaction[Any](executor, no_outbox, None), executor=executor,
            shared=SimpleNamespace(listener=None, tracer=None),
        )  # fmt: skip
        steps = work.begin(guarded)._steps
        try:
            steps.guard.unbegun = 2
            new_transaction = functools.partial(OwnedTransaction[Any], executor, no_outbox, None)
            await steps.phase(StepOptions("create"), self._insert, Any, new_transaction)
            if breaks:
                raise OnefoldError("the process breaks here")
            await steps.call(StepOptions("charge"), lambda: self.charges.append(held.digest), Any)
            await work.settle(ask, claim, Answer(201, b"{}", b"done"), keep_rows=True)
        except OnefoldError:
            await rollback_and_release()
            await work.release(ask, claim)
            return "failed"
        return "done"

    def _insert(self, tx: Any) -> None:
        mark = "%s" if self.database.dialect == "postgres" else "?"
        tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", (f"ride {self.number}",))

    async def complete(self, executor: ThreadExecutor[Any]) -> str:
        """One work of the completer, whose request is made effect by effect as well."""
        picked = await with_connection(self.completer._pick)
        if picked is None:
            return "nothing"
        await self.request(executor, resumed=True)
        return await with_connection(lambda: self.completer._judge(picked, CompletionAttempt(500)))

    async def end_leases(self) -> None:
        """Time, as one more party. A work whose row is locked needs no lease: the lock keeps others away."""
        column = "lease_ends_at" if self.place.is_postgres else "lease_ends_at_ms"
        past = "now() - interval '1 second'" if self.place.is_postgres else "1"
        change = Statement(f"UPDATE onefold_work SET {column} = {past}")
        await Acquire()
        try:
            await Batch((Boundary.BEGIN, change, Boundary.COMMIT))
        except StoreBusy:
            await rollback_and_release()
        else:
            await Release()

    def play(self, choices: Choices, *, lease_ends: bool = False, preemptions: int = 2) -> list[str]:
        """One schedule; what is wrong after it, as sentences."""
        self.number += 1
        self.charges.clear()
        first = VirtualExecutor(self.database)
        run(self.request(first, breaks=True), first)
        actors: list[Stepper[Any]] = []
        for name, act in (("retry", self.request), ("completer", self.complete)):
            executor = VirtualExecutor(self.database)
            actors.append(Stepper(name, unless_busy(act(executor)), executor))
        if lease_ends:
            actors.append(Stepper("time", self.end_leases(), ThreadExecutor(self.database)))
        order = interleave(actors, choices, preemptions=preemptions, private=private)
        results = [actor.result for actor in actors]
        return [f"{choices} {order} {results}: {fault}" for fault in self._faults(lease_ends)]

    def _faults(self, lease_ends: bool) -> Iterator[str]:
        raced = len(self.charges)
        for _ in range(5):
            self.place.lease_runs_out()
            executor = VirtualExecutor(self.database)
            if run(self.request(executor), executor) == "Replay":
                break
        else:
            yield "the client never gets its answer"
        rides = self.place.rows(f"SELECT name FROM effects WHERE name = 'ride {self.number}'")
        if len(rides) != 1:
            yield f"{len(rides)} rides"
        if len(set(self.charges)) != 1:
            yield f"charged under {len(set(self.charges))} keys"
        if raced > 1 and not lease_ends:
            yield f"charged {raced} times while the lease ran"
        if self.place.works_left() or self.place.steps_left():
            yield "a work is left"


async def unless_busy(flow: Flow[str]) -> str:
    """A statement that would wait is refused here: its client, and the completer, try again later."""
    try:
        return await flow
    except StoreBusy:
        return "busy"


def private(effect: Effect[Any]) -> bool:
    return isinstance(effect, Acquire | Now | Sleep | Release)


@contextmanager
def stage_at(place: Place, works: Callable[[str], Works] = Works) -> Iterator[Stage]:
    """On one thread: a statement that would wait for a lock is refused soon."""
    if place.is_postgres:
        options = {"options": "-c lock_timeout=20ms"}
        with ConnectionPool(place.address, kwargs=options, min_size=4, max_size=8, open=True) as pool:
            yield Stage(PsycopgDatabase(pool), place, works("postgres"))
    else:
        with closing(SqliteDatabase(place.address, busy_timeout_s=0.001)) as database:
            yield Stage(database, place, works("sqlite"))


@pytest.mark.parametrize("lease_ends", [False, True])
def test_a_retry_and_the_completer_do_each_step_once_in_every_order(place: Place, lease_ends: bool) -> None:
    played = 0
    with stage_at(place) as stage:
        for choices in every_schedule(limit=LIMIT):
            assert not stage.play(choices, lease_ends=lease_ends, preemptions=1)
            played += 1
    assert played >= (40 if lease_ends else 10)


@pytest.mark.soak
@pytest.mark.parametrize("lease_ends", [False, True])
def test_a_retry_and_the_completer_do_each_step_once_with_three_preemptions(place: Place, lease_ends: bool) -> None:
    with stage_at(place) as stage:
        for choices in every_schedule(limit=LIMIT * 10):
            assert not stage.play(choices, lease_ends=lease_ends, preemptions=3)


@contextmanager
def sqlite_stage(directory: Path) -> Iterator[Stage]:
    address = str(directory / "app.db")
    create_tables(address)
    with place_at(address) as place, stage_at(place) as stage:
        yield stage


#: The retry looks for a record, the completer settles, and the retry inserts what it takes for a new work.
SETTLED_AFTER_THE_LOOK = (1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0)


def test_a_work_that_is_settled_after_the_look_of_a_claim_is_not_begun_again(tmp_path: Path) -> None:
    with sqlite_stage(tmp_path) as stage:
        assert not stage.play(Choices(SETTLED_AFTER_THE_LOOK), preemptions=3)


def test_control_the_schedule_finds_a_claim_that_does_not_look_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "refuse_recorded", lambda ask: ())
    with sqlite_stage(tmp_path) as stage:
        assert stage.play(Choices(SETTLED_AFTER_THE_LOOK), preemptions=3)


class TakesWhatRuns(Works):
    """Planted: takes a work over whose lease runs, and leaves its fence."""

    async def _judge(self, ask: Any, row: Any, unless: Any) -> WorkClaim:
        digest, fingerprint, fence, attempts, parked, _, finished, result = row
        found = await super()._judge(
            ask, (digest, fingerprint, fence, attempts, parked, False, finished, result), unless
        )
        if isinstance(found, Held):
            back = Statement("UPDATE onefold_work SET fence = fence - 1")
            await Batch((Boundary.BEGIN, back, Boundary.COMMIT))
            found.fence -= 1
        return found


def test_the_schedules_find_a_work_that_two_do_at_once(place: Place) -> None:
    with stage_at(place, TakesWhatRuns) as stage:
        found = [fault for choices in every_schedule(limit=LIMIT) for fault in stage.play(choices, preemptions=1)]
    assert any("charged 2 times while the lease ran" in fault for fault in found)
