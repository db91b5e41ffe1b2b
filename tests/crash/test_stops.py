"""SIGSTOP of a real process at every boundary: on Postgres who retries is kept waiting for a lease at most, and
whoever comes back from the dead does no harm.

On SQLite there is no server that could tell a stopped process from a slow one. It keeps its key, and, if it has begun
to write, the file, until it goes on or dies. Everyone else is told so, quickly.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from onefold._idempotency.model import key_lock
from onefold.db.sqlite._locks import lock_file
from onefold.testing.servers import PrivatePostgres
from tests.crash.harness import Harness, insist
from tests.crash.request_processes import Fate, Order, RequestProcesses
from tests.crash.shop import PAY, digest, new_key
from tests.crash.wsgi_harness import WsgiPsycopg, WsgiSqlite
from tests.support.crash import Crossing
from tests.support.invariants import FINAL, violations

LEASE_S = 1.0
#: What a busy machine may add.
MARGIN_S = 2.0


def stopped_at_each(processes: RequestProcesses, blank: Order) -> list[tuple[Crossing, Order, Fate]]:
    """One stopped process for each crossing of the request, all at once."""
    counting = processes.ask(replace(blank, key=new_key()))
    assert counting.state == "ended"
    victims = []
    for crossing in counting.crossings:
        order = replace(blank, key=new_key(), act="stop", at=crossing.number)
        fate = processes.ask(order)
        assert fate.state == "stopped", f"never stopped at {crossing}"
        victims.append((crossing, order, fate))
    return victims


def retried_while_stopped(harness: Harness, order: Order, stopped: Fate, lease_s: float) -> list[str]:
    """A final answer within the lease, counted from when the stopped process began."""
    history = insist(harness, order.route, order.key, order.payload, stopped.attempt)
    return violations(history, harness.books.rows(order.key), lease_s=lease_s, margin_s=MARGIN_S)


def retried_after_return(harness: Harness, order: Order, late: Fate) -> list[str]:
    """Its late answer, or its silence, changes nothing."""
    history = insist(harness, order.route, order.key, order.payload, late.attempt)
    if history[-1] is late.attempt:
        history.append(harness.ask(order.route, order.key, order.payload))
    return violations(history, harness.books.rows(order.key), lease_s=harness.lease_s)


@pytest.mark.parametrize("server", ["postgres", pytest.param("postgres_16", marks=pytest.mark.soak)])
def test_a_process_stopped_at_any_boundary_on_postgres_is_waited_for_no_longer_than_its_lease(
    processes: RequestProcesses, request: pytest.FixtureRequest, server: str
) -> None:
    """Version 16 has no timeout for whole transactions: there the one for idle ones has to do."""
    running: PrivatePostgres = request.getfixturevalue(server)
    dsn = running.fresh_database()
    blank = Order(route=PAY, key="", payload="10 EUR", postgres=dsn, settings={"lease_s": LEASE_S})
    wrong: list[str] = []
    with closing(WsgiPsycopg(dsn)) as harness:
        victims = stopped_at_each(processes, blank)
        for crossing, order, stopped in victims:
            found = retried_while_stopped(harness, order, stopped, LEASE_S)
            wrong += [f"stopped at {crossing}: {sentence}" for sentence in found]
        for crossing, order, stopped in victims:
            found = retried_after_return(harness, order, processes.go_on(stopped))
            wrong += [f"back after a stop at {crossing}: {sentence}" for sentence in found]
    assert not wrong


def is_locked(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def is_held(path: Path, key: str) -> bool:
    return lock_file(os.path.realpath(path)).is_locked(key_lock(digest(PAY, key)))


def is_stored(path: Path, key: str) -> bool:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT 1 FROM onefold_record WHERE digest = ?", (digest(PAY, key),))
        return found.fetchone() is not None


def refused_while_held(harness: Harness, order: Order, *, locked: bool) -> list[str]:
    """The key is in flight, for as long as its holder is stopped; no answer is long in coming. Other keys are served,
    unless the file is locked."""
    wrong = []
    other = new_key()
    for key, payload, expected in (
        (order.key, order.payload, 409),
        (order.key, "99 EUR", 422),
        (other, order.payload, 503 if locked else 201),
    ):
        attempt = harness.ask(order.route, key, payload)
        status = attempt.reply and attempt.reply.status
        if status != expected:
            wrong.append(f"while its holder was stopped {key} {payload} was answered {status} and not {expected}")
        if attempt.ended_s - attempt.begun_s > MARGIN_S:
            wrong.append(f"while its holder was stopped an answer took {attempt.ended_s - attempt.begun_s:.1f} s")
    return wrong


@pytest.mark.parametrize("ending", ["go_on", "kill"])
def test_a_process_stopped_at_any_boundary_on_sqlite_keeps_its_key_and_no_more_than_it_had(
    processes: RequestProcesses, tmp_path: Path, ending: str
) -> None:
    wrong: list[str] = []
    held: list[Crossing] = []
    locked: list[Crossing] = []
    blank = Order(route=PAY, key="", payload="10 EUR")
    first = str(tmp_path / "0.db")
    with closing(WsgiSqlite(Path(first))):
        counting = processes.ask(replace(blank, key=new_key(), sqlite=first))
    for crossing in counting.crossings:
        # A file for each: whoever is stopped with the lock stops nobody else's experiment.
        path = tmp_path / f"{crossing.number}.db"
        order = replace(blank, key=new_key(), sqlite=str(path), act="stop", at=crossing.number)
        with closing(WsgiSqlite(path)) as harness:
            stopped = processes.ask(order)
            assert stopped.state == "stopped", f"never stopped at {crossing}"
            locked += [crossing] if is_locked(str(path)) else []
            if is_held(path, order.key) and not is_stored(path, order.key):
                held.append(crossing)
                found = refused_while_held(harness, order, locked=crossing in locked)
            else:
                found = retried_while_stopped(harness, order, stopped, harness.lease_s)
            late = processes.go_on(stopped) if ending == "go_on" else processes.kill(stopped)
            if ending == "kill" and is_held(path, order.key):
                found.append("the kernel did not free the locks of a killed process")
            found += retried_after_return(harness, order, late)
            if crossing in held and ending == "go_on" and late.attempt.verdict not in FINAL:
                found.append(f"whoever held the key was answered {late.attempt.reply} when it went on")
        wrong += [f"stopped at {crossing}: {sentence}" for sentence in found]
    assert not wrong
    assert ("insert", "after") in {(crossing.verb, crossing.edge) for crossing in locked}
    assert ("insert", "before") in {(crossing.verb, crossing.edge) for crossing in held if crossing not in locked}
