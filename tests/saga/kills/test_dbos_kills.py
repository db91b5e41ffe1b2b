"""Processes of sagas on DBOS, killed and stopped at every point: each effect net 0 or 1, the saga whole or undone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.saga.kills.counting import create_counter, read_counter
from tests.saga.kills.killing import DBOS_ENDS, MAIN, POINTS, PRELUDE, judge, kill_and_restart
from tests.saga.kills.server_killing import Target, Victim, kill_and_go_on
from tests.saga.kills.world import Outside
from tests.support.fork_server import Child, fork_server
from tests.support.patience import PATIENCE_S

ENGINE = "tests.saga.kills.sagas:open_dbos"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'sagas.db'}"
        return
    server: PrivatePostgres = request.getfixturevalue("postgres")
    dsn = server.fresh_database()
    yield dsn
    server.drop_database(dsn)


SOME = [
    ("sqlite", "complete", "charge:mid"),
    ("postgres", "abort", "refund:mid"),
    ("sqlite", "abort", "end:before"),
    ("postgres", "complete", "end:mid"),
]


@pytest.mark.parametrize(("url", "mode", "at"), SOME, indirect=["url"])
def test_a_killed_saga_ends_as_if_it_had_not_been(tmp_path: Path, url: str, mode: str, at: str) -> None:
    outside = kill_and_restart(tmp_path / "world.db", url, mode, at)
    assert judge(outside, mode) == []
    # What was not recorded the engine ran twice: only the key makes its effect single. All else it ran once.
    again = at.partition(":")[0]
    assert {action: count for action, count in outside.executions().items() if count > 1} == (
        {} if again == "end" else {again: 2}
    )


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "at"), POINTS + DBOS_ENDS)
def test_killed_at_any_point_a_saga_ends_as_if_it_had_not_been(tmp_path: Path, url: str, mode: str, at: str) -> None:
    assert judge(kill_and_restart(tmp_path / "world.db", url, mode, at), mode) == []


def test_the_control_without_keys_has_an_effect_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sagas.db'}"
    outside = kill_and_restart(tmp_path / "world.db", url, "complete", "charge:mid", keyed=False)
    assert judge(outside, "complete") == ["charge stands 2 times", "charge: net 2 of a saga that completed"]


@pytest.fixture
def postgres_there(mortal_postgres: PrivatePostgres) -> Iterator[Target]:
    dsn = mortal_postgres.fresh_database()
    yield Target(mortal_postgres, ENGINE, dsn)
    mortal_postgres.drop_database(dsn)


@pytest.mark.parametrize(("mode", "at"), [("complete", "charge:mid"), ("abort", "refund:mid")])
def test_a_saga_ends_as_if_postgres_had_not_been_killed(
    tmp_path: Path, postgres_there: Target, mode: str, at: str
) -> None:
    assert judge(kill_and_go_on(postgres_there, tmp_path / "world.db", mode, at, "server"), mode) == []


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["server", "both"])
@pytest.mark.parametrize(("mode", "at"), POINTS + DBOS_ENDS)
def test_killed_with_postgres_at_any_point_a_saga_ends_as_if_nothing_had_died(
    tmp_path: Path, postgres_there: Target, victim: Victim, mode: str, at: str
) -> None:
    assert judge(kill_and_go_on(postgres_there, tmp_path / "world.db", mode, at, victim), mode) == []


def start(url: str, world: Path, at: str, mode: str) -> Child:
    child = fork_server(PRELUDE).start_with_pipes("-c", MAIN, ENGINE, url, str(world), at, mode, "keyed")
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    return child


#: On PostgreSQL the next test has a takeover, too.
@pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.soak)], indirect=True)
def test_a_peer_takes_over_the_saga_of_a_process_that_died(tmp_path: Path, url: str) -> None:
    outside = Outside(tmp_path / "world.db")
    outside.create()
    peer = start(url, outside.path, "", "peer")
    dying = start(url, outside.path, "charge:mid", "complete")
    assert dying.wait(PATIENCE_S) == -signal.SIGKILL
    dying.close()
    assert peer.stdout is not None
    assert peer.stdout.readline() == '"shipped"\n'
    peer.close()
    assert judge(outside, "complete") == []


def test_a_process_that_was_stopped_writes_nothing_after_another_took_over(tmp_path: Path, postgres_dsn: str) -> None:
    """It is stopped in the middle of a step, and its lock is taken from it, as by a network that breaks."""
    import psycopg

    outside = Outside(tmp_path / "world.db")
    outside.create()
    stopped = start(postgres_dsn, outside.path, "charge:stop", "complete")
    wait_until_dead(outside)
    assert stopped.wait_for_change() == "stopped"
    with psycopg.connect(postgres_dsn, autocommit=True) as db:
        ended = db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchall()
    assert ended
    peer = start(postgres_dsn, outside.path, "", "peer")
    assert peer.stdout is not None
    assert peer.stdout.readline() == '"shipped"\n'
    peer.close()
    stopped.send_signal(signal.SIGCONT)
    assert stopped.stdout is not None
    assert stopped.stdout.readline() == '"shipped"\n'  # what the other has recorded
    stopped.close()
    assert judge(outside, "complete") == []
    assert outside.executions() == {"reserve": 1, "charge": 2, "ship": 1}


def wait_until_dead(outside: Outside) -> None:
    until = time.monotonic() + PATIENCE_S
    while not outside.died():
        assert time.monotonic() < until
        time.sleep(0.02)


# A step in the user's own transaction: it has no key, and happens once.

COUNT = "import sys; from tests.saga.kills.counting import main; main(*sys.argv[1:])"


def count_and_restart(tmp_path: Path, at: str, *, aborts: bool, alone: bool = False) -> int:
    """Run the saga until its process kills itself there, and again to its end: what is counted then."""
    outside, shop = Outside(tmp_path / "world.db"), tmp_path / "shop.db"
    outside.create()
    create_counter(shop)
    words = (f"sqlite:///{tmp_path / 'sagas.db'}", str(outside.path), str(shop), at, str(aborts), str(alone))
    server = fork_server("import tests.saga.kills.counting")
    first = server.run("-c", COUNT, *words, within_s=PATIENCE_S * 2)
    assert first.returncode == -signal.SIGKILL, f"it did not die at {at}: {first.stdout} {first.stderr}"
    second = server.run("-c", COUNT, *words, within_s=PATIENCE_S * 2)
    assert second.stdout.strip() == ("compensated" if aborts else "completed"), second.stderr
    return read_counter(shop)


@pytest.mark.parametrize(
    "at", ["count:end", *(pytest.param(f"count:{at}", marks=pytest.mark.soak) for at in ("before", "mid"))]
)
def test_a_killed_transaction_of_a_saga_is_counted_once(tmp_path: Path, at: str) -> None:
    assert count_and_restart(tmp_path, at, aborts=False) == 1


@pytest.mark.soak
@pytest.mark.parametrize("at", ["take_back:before", "take_back:mid", "take_back:end"])
def test_a_killed_compensation_in_a_transaction_is_counted_once(tmp_path: Path, at: str) -> None:
    assert count_and_restart(tmp_path, at, aborts=True) == 0


def test_the_control_that_commits_by_itself_is_counted_twice(tmp_path: Path) -> None:
    assert count_and_restart(tmp_path, "count:end", aborts=False, alone=True) == 2
