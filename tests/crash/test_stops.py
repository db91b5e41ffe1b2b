"""SIGSTOP of a real process at every boundary: who retries is kept waiting for a lease at most, and whoever comes
back from the dead does no harm.

SQLite knows one exception, and no database could do without it: a process that is stopped while it holds the write
lock keeps the file locked until it goes on or dies. Then everyone else is told so, quickly.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.idempotency import leased
from onefold.testing.crash import Crossing
from onefold.testing.invariants import FINAL, violations
from onefold.testing.servers import PrivatePostgres
from tests.crash.shop import PAY, new_key
from tests.crash.stands import Stand, insist
from tests.crash.wsgi_stands import WsgiPsycopg, WsgiSqlite
from tests.crash.zygote import Fate, Order, Zygote

LEASE_S = 1.0
SQLITE_LEASE_S = 0.3
#: What a busy machine may add.
MARGIN_S = 2.0


def stopped_at_each(zygote: Zygote, blank: Order) -> list[tuple[Crossing, Order, Fate]]:
    """One stopped process for each crossing of the request, all at once."""
    counting = zygote.ask(replace(blank, key=new_key()))
    assert counting.state == "ended"
    victims = []
    for crossing in counting.crossings:
        order = replace(blank, key=new_key(), act="stop", at=crossing.number)
        fate = zygote.ask(order)
        assert fate.state == "stopped", f"never stopped at {crossing}"
        victims.append((crossing, order, fate))
    return victims


def retried_while_stopped(stand: Stand, order: Order, stopped: Fate, lease_s: float) -> list[str]:
    """A final answer within the lease, counted from when the stopped process began."""
    history = insist(stand, order.route, order.key, order.payload, stopped.attempt)
    return violations(history, stand.books.rows(order.key), lease_s=lease_s, margin_s=MARGIN_S)


def retried_after_return(stand: Stand, order: Order, late: Fate) -> list[str]:
    """Its late answer, or its silence, changes nothing."""
    history = insist(stand, order.route, order.key, order.payload, late.attempt)
    if history[-1] is late.attempt:
        history.append(stand.ask(order.route, order.key, order.payload))
    return violations(history, stand.books.rows(order.key), lease_s=stand.lease_s)


@pytest.mark.parametrize("server", ["postgres", pytest.param("postgres_16", marks=pytest.mark.soak)])
def test_a_process_stopped_at_any_boundary_on_postgres_is_waited_for_no_longer_than_its_lease(
    zygote: Zygote, request: pytest.FixtureRequest, server: str
) -> None:
    """Version 16 has no timeout for whole transactions: there the one for idle ones has to do."""
    running: PrivatePostgres = request.getfixturevalue(server)
    dsn = running.fresh_database()
    blank = Order(route=PAY, key="", payload="10 EUR", postgres=dsn, settings={"lease_s": LEASE_S})
    wrong: list[str] = []
    with closing(WsgiPsycopg(dsn)) as stand:
        victims = stopped_at_each(zygote, blank)
        for crossing, order, stopped in victims:
            found = retried_while_stopped(stand, order, stopped, LEASE_S)
            wrong += [f"stopped at {crossing}: {sentence}" for sentence in found]
        for crossing, order, stopped in victims:
            found = retried_after_return(stand, order, zygote.go_on(stopped))
            wrong += [f"back after a stop at {crossing}: {sentence}" for sentence in found]
    assert not wrong


def is_locked(path: str) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def refused_while_locked(stand: Stand, order: Order, stopped: Fate) -> list[str]:
    """Every answer is "in flight" or "unavailable", and none is long in coming."""
    wrong = []
    until_s = stopped.attempt.ended_s + 2 * SQLITE_LEASE_S
    while time.monotonic() < until_s:
        attempt = stand.ask(order.route, order.key, order.payload)
        status = attempt.reply and attempt.reply.status
        if status not in (409, 503):
            wrong.append(f"while the file was locked a retry was answered {status}")
        if attempt.ended_s - attempt.begun_s > MARGIN_S:
            wrong.append(f"while the file was locked a retry took {attempt.ended_s - attempt.begun_s:.1f} s")
    return wrong


@pytest.mark.parametrize("ending", ["go_on", "kill"])
def test_a_process_stopped_at_any_boundary_on_sqlite_is_waited_for_unless_it_holds_the_file(
    zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    monkeypatch.setattr(leased, "BUSY_S_MAX", 0.5)  # seconds are enough to show that there is a bound
    wrong: list[str] = []
    locked: list[Crossing] = []
    blank = Order(route=PAY, key="", payload="10 EUR", settings={"lease_s": SQLITE_LEASE_S})
    first = str(tmp_path / "0.db")
    with closing(WsgiSqlite(Path(first))):
        counting = zygote.ask(replace(blank, key=new_key(), sqlite=first))
    for crossing in counting.crossings:
        # A file for each: whoever is stopped with the lock stops nobody else's experiment.
        path = tmp_path / f"{crossing.number}.db"
        order = replace(blank, key=new_key(), sqlite=str(path), act="stop", at=crossing.number)
        with closing(WsgiSqlite(path, lease_s=SQLITE_LEASE_S)) as stand:
            stopped = zygote.ask(order)
            assert stopped.state == "stopped", f"never stopped at {crossing}"
            if is_locked(str(path)):
                locked.append(crossing)
                found = refused_while_locked(stand, order, stopped)
            else:
                found = retried_while_stopped(stand, order, stopped, SQLITE_LEASE_S)
            late = zygote.go_on(stopped) if ending == "go_on" else zygote.kill(stopped)
            found += retried_after_return(stand, order, late)
            if crossing in locked and ending == "go_on" and late.attempt.verdict not in FINAL:
                found.append(f"whoever held the file was answered {late.attempt.reply} when it went on")
        wrong += [f"stopped at {crossing}: {sentence}" for sentence in found]
    assert not wrong
    assert ("insert", "after") in {(crossing.verb, crossing.edge) for crossing in locked}
