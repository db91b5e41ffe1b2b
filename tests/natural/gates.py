"""Callers on threads of their own that stand still before each statement, and go on when a schedule says so.

A statement on Postgres may wait for another caller's transaction, so that callers cannot take turns on one thread. Here
each has a thread; the schedule lets one go, and waits until it stands before its next statement, has ended, or is seen
to wait for a lock (pg_stat_activity tells). On SQLite the write lock is known to be with the caller that has written:
the others cannot go until it has ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from onefold import Onefold, Transaction
from onefold._kernel.effects import BatchItem, Boundary, Nested
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase
from tests.support.patience import PATIENCE_S
from tests.support.schedules import Choices

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"


class Caller:
    """One transaction, on a thread of its own."""

    def __init__(self, name: str, address: str, work: Callable[[Transaction[Any]], object]) -> None:
        self.name = name
        self.answer: object = None
        self.ended = False
        self.pid: int | None = None
        #: Whether it has executed a statement, and so has the write lock of SQLite.
        self.writes = False
        self._stands = threading.Semaphore(0)
        self._goes = threading.Semaphore(0)
        inner: Any = (
            PsycopgDatabase(address) if "://" in address else SqliteDatabase(address, busy_timeout_s=PATIENCE_S)
        )
        self._inner = inner
        self._work = work
        self.dialect: str = inner.dialect
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    # --- a database of onefold's ---

    def acquire(self) -> Any:
        return _GatedConnection(self, self._inner.acquire())

    def close(self) -> None:
        self._inner.close()

    # --- the caller's side ---

    def stand(self) -> None:
        self._stands.release()
        assert self._goes.acquire(timeout=PATIENCE_S)

    def _run(self) -> None:
        once = Onefold(self)
        try:
            with once.transaction() as tx:
                self.answer = self._work(tx)
        except Exception as error:
            self.answer = error
        finally:
            self.ended, self.writes = True, False
            once.close()
            self._stands.release()

    # --- the schedule's side ---

    def arrive(self) -> None:
        """It stands before its first statement."""
        assert self._stands.acquire(timeout=PATIENCE_S)

    def go(self) -> None:
        self._goes.release()

    def has_arrived(self, outside: psycopg.Connection[Any] | None) -> bool:
        """Whether it stands again, or has ended. False: it waits for a lock."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if self._stands.acquire(timeout=0.002):
                return True
            if outside is not None and outside.execute(_WAITING, (self.pid,)).fetchone() != (0,):
                return False
        raise AssertionError(f"{self.name} neither went on nor waits for a lock")

    def join(self) -> None:
        self._thread.join(PATIENCE_S)


class _GatedConnection:
    """Stands still before each statement of the caller's, and before COMMIT."""

    def __init__(self, caller: Caller, inner: Any) -> None:
        self._caller = caller
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def query(self, statement: Any) -> Any:
        if self._caller.dialect == "postgres" and self._caller.pid is None:
            self._caller.pid = self._inner.handle.info.backend_pid
        self._caller.stand()
        self._caller.writes = True
        return self._inner.query(statement)

    def batch(self, items: Sequence[BatchItem]) -> int:
        begins = isinstance(items[0], Nested) and self._caller.dialect == "sqlite" and not self._caller.writes
        if begins or (items[-1] in (Boundary.COMMIT, Boundary.ROLLBACK) and self._caller.writes):
            self._caller.stand()
            self._caller.writes = True
        count: int = self._inner.batch(items)
        return count


def take_turns(
    address: str, works: Sequence[Callable[[Transaction[Any]], object]], choices: Choices
) -> tuple[list[object], str]:
    """Run the callers as the schedule says: their answers (or errors), and who went when."""
    callers = [Caller("abc"[number], address, work) for number, work in enumerate(works)]
    is_postgres = "://" in address
    outside = psycopg.connect(address, autocommit=True) if is_postgres else None
    went = ""
    waiting: list[Caller] = []
    try:
        for caller in callers:
            caller.arrive()
        while alive := [caller for caller in callers if not caller.ended]:
            writer = None if is_postgres else next((caller for caller in alive if caller.writes), None)
            ready = [writer] if writer is not None else [caller for caller in alive if caller not in waiting]
            if not ready:  # what they wait for has ended, and pg_stat_activity did not know it yet
                waiting = [caller for caller in waiting if not caller.has_arrived(outside)]
                continue
            chosen = ready[choices.choose(len(ready))]
            went += chosen.name
            chosen.go()
            if not chosen.has_arrived(outside):
                waiting.append(chosen)
            for other in [caller for caller in waiting if caller is not chosen]:
                if other.has_arrived(outside):
                    waiting.remove(other)
    finally:
        if outside is not None:
            outside.close()
        for caller in callers:
            caller.join()
    return [caller.answer for caller in callers], went
