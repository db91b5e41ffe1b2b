"""A process that was forked (gunicorn --preload) never talks over its parent's connections, nor ends them."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel.public_drivers import PUBLIC_ONLY
from tests.support.fork_server import LIBRARIES, fork_server
from tests.support.patience import PATIENCE_S

#: What each program begins with: `opened` makes the database, `ask` asks for the number of its session.
PRELUDE = """
import asyncio, json, os, sys
from onefold._kernel.effects import Boundary, Statement
from onefold.errors import ConfigurationError

address, sync = sys.argv[1], not {asynchronous}
postgres = "://" in address
look = Statement("SELECT pg_backend_pid()" if postgres else "SELECT 1")
url = address.replace("postgresql://", "postgresql+{driver}://") if postgres else "sqlite+{driver}:///" + address

{opening}

async def ask_async():
    connection = await database.acquire()
    await connection.batch((Boundary.BEGIN,))
    [(found,)] = await connection.fetch(look)
    await connection.batch((Boundary.COMMIT,))
    await connection.release()
    return found

def ask():
    if not sync:
        return asyncio.run(ask_async())
    connection = database.acquire()
    connection.batch((Boundary.BEGIN,))
    [(found,)] = connection.fetch(look)
    connection.batch((Boundary.COMMIT,))
    connection.release()
    return found

def in_a_child(work):
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            told = work()
        except BaseException as error:
            told = type(error).__name__ + ": " + str(error)
        os.write(writer, json.dumps(told).encode())
        os._exit(0)
    os.close(writer)
    os.wait()
    with os.fdopen(reader) as pipe:
        return json.loads(pipe.read() or '"the child said nothing"')
"""

RUN = """
before = ask()
children = [in_a_child(lambda: [ask(), ask()]) for _ in range(2)]
print(json.dumps([before, children, ask()]))
"""

OPENINGS: dict[str, tuple[str, bool, str]] = {
    "psycopg": ("from onefold.db.psycopg import PsycopgDatabase as D\ndatabase = D(address)", False, ""),
    "asyncpg": ("from onefold.db.asyncpg import AsyncpgDatabase as D\ndatabase = D(address)", True, ""),
    "psycopg-async": ("from onefold.db.psycopg import AsyncPsycopgDatabase as D\ndatabase = D(address)", True, ""),
    "sqlalchemy-psycopg": (
        "from sqlalchemy import create_engine\nfrom onefold.db.sqlalchemy import SqlalchemyDatabase as D\n"
        "database = D(create_engine(url))",
        False,
        "psycopg",
    ),
    "sqlalchemy-asyncpg": (
        "from sqlalchemy.ext.asyncio import create_async_engine\n"
        "from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase as D\ndatabase = D(create_async_engine(url))",
        True,
        "asyncpg",
    ),
}
SQLITE: dict[str, tuple[str, bool, str]] = {
    "sqlite3": ("from onefold.db.sqlite import SqliteDatabase\ndatabase = SqliteDatabase(address)", False, ""),
    "sqlite3-async": ("from onefold.db.sqlite import async_sqlite\ndatabase = async_sqlite(address)", True, ""),
    "sqlalchemy-pysqlite": (OPENINGS["sqlalchemy-psycopg"][0], False, "pysqlite"),
    "sqlalchemy-aiosqlite": (OPENINGS["sqlalchemy-asyncpg"][0], True, "aiosqlite"),
}


def run(opening: tuple[str, bool, str], program: str, address: str) -> Any:
    code, asynchronous, driver = opening
    prelude = PRELUDE.format(opening=code, asynchronous=asynchronous, driver=driver)
    done = fork_server(LIBRARIES).run("-c", prelude + textwrap.dedent(program), address, within_s=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_a_child_opens_sessions_of_its_own_and_leaves_its_parents_alone(
    opening: tuple[str, bool, str], postgres_dsn: str
) -> None:
    before, children, after = run(opening, RUN, postgres_dsn)
    for child in children:
        assert isinstance(child, list), child
        assert before not in child
    if not opening[1]:  # each call of the async ones has a loop, and so a session, of its own
        assert after == before


@pytest.mark.parametrize("opening", SQLITE.values(), ids=SQLITE)
def test_a_child_goes_on_with_the_same_file(opening: tuple[str, bool, str], sqlite_path: Path) -> None:
    assert run(opening, RUN, str(sqlite_path)) == [1, [[1, 1], [1, 1]], 1]


SHARED = """
from psycopg_pool import ConnectionPool
from onefold.db.psycopg import PsycopgDatabase
pool = ConnectionPool(address, min_size=1, max_size=1, open={open})
database = PsycopgDatabase(pool)
"""


def test_a_pool_of_the_application_that_was_opened_before_is_refused_each_time(postgres_dsn: str) -> None:
    program = """
    def twice():
        told = []
        for _ in range(2):
            try:
                told.append(ask())
            except ConfigurationError as error:
                told.append(str(error))
        return told

    before = ask()
    child = in_a_child(twice)
    print(json.dumps([before, child, ask()]))
    pool.close()
    """
    before, child, after = run((SHARED.format(open=True), False, ""), program, postgres_dsn)
    assert after == before
    for told in child:
        assert "was opened before this process" in told
        assert "post_fork" in told


def test_a_pool_of_the_application_that_was_opened_before_is_refused_also_where_onefold_is_made_later(
    postgres_dsn: str,
) -> None:
    program = """
    pool.wait()

    def late():
        global database
        database = PsycopgDatabase(pool)
        return ask()

    print(json.dumps(in_a_child(late)))
    pool.close()
    """
    assert "was opened before this process" in run((SHARED.format(open=True), False, ""), program, postgres_dsn)


def test_a_pool_of_the_application_that_its_worker_opens_is_used(postgres_dsn: str) -> None:
    program = """
    def opened_here():
        pool.open()
        return ask()

    print(json.dumps(in_a_child(opened_here)))
    """
    assert isinstance(run((SHARED.format(open=False), False, ""), program, postgres_dsn), int)


def test_the_journal_of_a_client_is_opened_anew(postgres_dsn: str) -> None:
    opening = (
        "from onefold._client.journal_store import JournalStore\n"
        "store = JournalStore(address, retention_s=60)\ndatabase = store.threads"
    )
    before, children, after = run((opening, False, ""), RUN, postgres_dsn)
    assert after == before
    assert all(isinstance(child, list) and before not in child for child in children), children


def test_an_engine_that_its_application_has_disposed_of_is_left_alone(postgres_dsn: str) -> None:
    program = """
    def disposed():
        engine = database._engine
        engine.dispose(close=False)
        pool = engine.pool
        return [ask(), engine.pool is pool]

    before = ask()
    session, same = in_a_child(disposed)
    print(json.dumps([before, session, same]))
    """
    before, session, same = run(OPENINGS["sqlalchemy-psycopg"], program, postgres_dsn)
    assert session != before
    assert same


#: Pools of the application that are opened when onefold knows them, and before it has used them.
OPENED_LATER: dict[str, tuple[str, bool, str]] = {
    "psycopg": (
        """
from psycopg_pool import ConnectionPool
from onefold.db.psycopg import PsycopgDatabase
pool = ConnectionPool(address, min_size=1, max_size=1, open=False)
database = PsycopgDatabase(pool)
pool.open(wait=True)
""",
        False,
        "",
    ),
    "asyncpg": (
        """
import asyncpg
from onefold.db.asyncpg import AsyncpgDatabase
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
pool = loop.run_until_complete(asyncpg.create_pool(address, min_size=1, max_size=1))
database = AsyncpgDatabase(pool)
""",
        True,
        "",
    ),
    "psycopg-async": (
        """
from psycopg_pool import AsyncConnectionPool
from onefold.db.psycopg import AsyncPsycopgDatabase
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
pool = AsyncConnectionPool(address, min_size=1, max_size=1, open=False)
database = AsyncPsycopgDatabase(pool)
loop.run_until_complete(pool.open(wait=True))
""",
        True,
        "",
    ),
}


@pytest.mark.parametrize("way", ["fast", "public"])
@pytest.mark.parametrize("opening", OPENED_LATER.values(), ids=OPENED_LATER)
def test_a_pool_of_the_application_that_onefold_has_not_used_yet_is_refused_in_a_child(
    opening: tuple[str, bool, str], way: str, postgres_dsn: str
) -> None:
    code, asynchronous, driver = opening
    public = f'os.environ["{PUBLIC_ONLY}"] = "{int(way == "public")}"'
    program = """
    told = [in_a_child(ask)]
    if not sync:
        told.append(in_a_child(lambda: loop.run_until_complete(ask_async())))
    print(json.dumps(told))
    """
    for told in run((public + code, asynchronous, driver), program, postgres_dsn):
        assert str(told).startswith("ConfigurationError"), told
        assert "fork" in told


@pytest.mark.parametrize("opening", [OPENINGS["asyncpg"], OPENINGS["psycopg-async"], OPENINGS["sqlalchemy-asyncpg"]])
def test_a_child_that_goes_on_with_its_parents_loop_has_sessions_of_its_own(
    opening: tuple[str, bool, str], postgres_dsn: str
) -> None:
    program = """
    loop = asyncio.new_event_loop()
    before = loop.run_until_complete(ask_async())
    child = in_a_child(lambda: loop.run_until_complete(ask_async()))
    print(json.dumps([before, child, loop.run_until_complete(ask_async())]))
    """
    before, child, after = run(opening, program, postgres_dsn)
    assert isinstance(child, int), child
    assert child != before == after


IN_A_TRANSACTION = """
TABLE, COUNT = Statement("CREATE TEMP TABLE forked (x int)"), Statement("SELECT count(*) FROM forked")

def write(handle):
    return getattr(handle, "exec_driver_sql", handle.execute)("INSERT INTO forked VALUES (1)")

async def write_async(handle):
    await write(handle)

async def told_async():
    connection = await database.acquire()
    await connection.batch((Boundary.BEGIN, TABLE))
    handle = connection.handle
    told = in_a_child(lambda: asyncio.run(write_async(handle)))
    await write(handle)
    [(found,)] = await connection.fetch(COUNT)
    await connection.batch((Boundary.ROLLBACK,))
    await connection.release()
    return told, found

def told():
    if not sync:
        return asyncio.run(told_async())
    connection = database.acquire()
    connection.batch((Boundary.BEGIN, TABLE))
    handle = connection.handle
    told = in_a_child(lambda: write(handle))
    write(handle)
    [(found,)] = connection.fetch(COUNT)
    connection.batch((Boundary.ROLLBACK,))
    connection.release()
    return told, found

print(json.dumps(told()))
"""


@pytest.mark.parametrize(
    "driver",
    ["psycopg", "psycopg-async", "sqlalchemy-psycopg", "sqlalchemy-asyncpg", "sqlite3", "sqlalchemy-pysqlite"],
)
def test_what_a_child_does_with_its_parents_connection_is_not_in_the_parents_transaction(
    driver: str, request: pytest.FixtureRequest
) -> None:
    on_sqlite = driver in SQLITE
    address = str(request.getfixturevalue("sqlite_path" if on_sqlite else "postgres_dsn"))
    told, found = run((SQLITE if on_sqlite else OPENINGS)[driver], IN_A_TRANSACTION, address)
    assert "by a fork; its transaction belongs to that process" in told
    assert found == 1
