"""Requests with the same key, interleaved: who asks what, how its handler behaves, and what must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from psycopg_pool import ConnectionPool

from onefold._http.request import Request, Response
from onefold._idempotency.store import Store
from onefold._kernel.effects import Acquire, Call, Effect, Flow, Now, Release, Sleep
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.ports import Database
from onefold._kernel.runners import run
from onefold._kernel.transaction import Transaction
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase
from onefold.telemetry import Claimed, Event, Settled
from tests.crash.harness import guard_for
from tests.crash.shop import (
    PAY,
    Books,
    Insert,
    Shop,
    SqliteBooks,
    insert_psycopg,
    insert_sqlite,
    new_key,
    open_books,
    routes,
)
from tests.support.crash import Boundaries
from tests.support.invariants import FINAL, Attempt, Held, Reply, fence_violations, violations
from tests.support.schedules import Choices, Handling, Stepper, VirtualExecutor, interleave, request

#: How often a client that was not answered for good comes back.
RETRIES_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Fighter:
    """One request: what it asks for, and how its handler ends if it is the one to run."""

    name: str
    payload: str = "10 EUR"
    handler: Literal["pays", "declines", "breaks"] = "pays"


class Arena:
    """A database for interleavings: no waiting, so that a step that would block is refused instead."""

    def __init__(
        self, database: Database[Any], insert: Insert, books: Books, *, store: Store | None = None, splits: bool = False
    ) -> None:
        self.books = books
        self.boundaries = Boundaries()
        self._database = database
        self._bounded = self.boundaries.around(database)
        self._insert = insert
        self._splits = splits
        self._guard = guard_for(database.dialect, store)
        route = routes(lease_s=30.0).resolve(Request(method="POST", path=PAY))
        assert route is not None
        self._route = route

    def fight(
        self,
        fighters: Sequence[Fighter],
        choices: Choices,
        *,
        lease_ends: bool = False,
        preemptions: int | None = None,
        private: Callable[[Effect[Any]], bool] | None = None,
    ) -> list[str]:
        """One schedule from start to end, then every client's retries: what is wrong, as sentences."""
        key = new_key()
        log: list[Held] = []
        steppers: list[Stepper[Any]] = [self._stepper(fighter, key, log) for fighter in fighters]
        if lease_ends:
            steppers.append(Stepper("lease", self._lease(key), ThreadExecutor(self._database)))
        seen_by_nobody = is_private if self._database.dialect == "postgres" else is_private_on_sqlite
        order = interleave(steppers, choices, preemptions=preemptions, private=private or seen_by_nobody)
        results = [stepper.result for stepper in steppers]
        history = [
            Attempt(key=key, payload=fighter.payload, reply=_reply(result))
            for fighter, result in zip(fighters, results, strict=False)
        ]
        for fighter in fighters:
            history += self._retries(fighter, key, log)
        wrong = violations(history, self.books.rows(key))
        if not lease_ends or self._database.dialect != "sqlite":
            # On SQLite who has lost its locks goes on, and the record decides who of the two is first.
            wrong += fence_violations(log)
        if self.boundaries.out:
            wrong.append(f"{self.boundaries.out} connections are out")
        return [f"{choices} ({' '.join(order)}): {sentence}" for sentence in wrong]

    def close(self) -> None:
        self._database.close()
        self.books.close()

    async def _lease(self, key: str) -> None:
        """Time, as one more party: whoever holds the key loses it now."""
        await Handling(lambda: self.books.end_lease(PAY, key))

    def _stepper(self, fighter: Fighter, key: str, log: list[Held]) -> Stepper[Response]:
        executor = VirtualExecutor(self._bounded, tick_s=10.0)
        return Stepper(fighter.name, self._request(fighter, key, log, executor), executor)

    def _request(self, fighter: Fighter, key: str, log: list[Held], executor: ThreadExecutor[Any]) -> Flow[Response]:
        def listen(event: Event) -> None:
            if isinstance(event, Settled):
                log.append(Held("settled", key, fighter.name))
            elif isinstance(event, Claimed) and event.outcome == "run":
                log.append(Held("granted", key, fighter.name))

        guard = replace(self._guard, listener=listen)
        headers = ((b"idempotency-key", key.encode()), (b"content-type", b"text/plain"))
        asked = Request(method="POST", path=PAY, headers=headers)
        handler = self._handler(fighter, key)
        return request(guard, self._route, asked, fighter.payload.encode(), executor, handler)

    def _handler(self, fighter: Fighter, key: str) -> Callable[[Transaction[Any]], Response]:
        shop = Shop(self.boundaries)

        def handle(tx: Transaction[Any]) -> Response:
            if self._splits:
                self.books.insert(key, fighter.payload)
            else:
                self._insert(tx.connection, key, fighter.payload)
            if fighter.handler == "breaks":
                raise RuntimeError("the card processor is down")
            status, headers, body = shop.decide(key, fighter.payload)
            encoded = tuple((name.encode(), value.encode()) for name, value in headers)
            return Response(402 if fighter.handler == "declines" else status, encoded, body)

        return handle

    def _retries(self, fighter: Fighter, key: str, log: list[Held]) -> list[Attempt]:
        """One more look for who has an answer; who has none asks until it has. A broken handler is repaired."""
        attempts: list[Attempt] = []
        repaired = replace(fighter, handler="pays" if fighter.handler == "breaks" else fighter.handler)
        while not attempts or (attempts[-1].verdict not in FINAL and len(attempts) < RETRIES_MAX):
            executor = VirtualExecutor(self._bounded)
            reply = _reply(run(self._request(repaired, key, log, executor), executor))
            attempts.append(Attempt(key=key, payload=fighter.payload, reply=reply))
        return attempts


def sqlite_arena(path: Path, **options: Any) -> Arena:
    open_books(path).close()
    books = SqliteBooks(path, busy_timeout_s=0.001)
    return Arena(SqliteDatabase(path, busy_timeout_s=0.001), insert_sqlite, books, **options)


class PostgresArena(Arena):
    """On Postgres, where whoever waits for a row lock is refused soon: its holder is on the same thread."""

    def __init__(self, dsn: str, **options: Any) -> None:
        settings = {"options": "-c lock_timeout=50ms"}
        self._pool: ConnectionPool[Any] = ConnectionPool(dsn, kwargs=settings, min_size=4, max_size=8, open=True)
        super().__init__(PsycopgDatabase(self._pool), insert_psycopg, open_books(dsn), **options)

    def close(self) -> None:
        super().close()
        self._pool.close()


def is_private(effect: Effect[Any]) -> bool:
    """Taking and giving back a connection outside a transaction, the time, and who asks: nobody else can see it."""
    if isinstance(effect, Call):
        return not isinstance(effect, Handling)
    return isinstance(effect, Acquire | Release | Now | Sleep)


def is_private_on_sqlite(effect: Effect[Any]) -> bool:
    """The same, but whoever gives its connection back gives its locks back."""
    return is_private(effect) and not isinstance(effect, Release)


def _reply(response: Response | None) -> Reply | None:
    return None if response is None else Reply(response.status, response.headers, response.body)
