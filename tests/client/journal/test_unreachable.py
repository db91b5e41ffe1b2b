"""A journal whose server cannot be reached: a call waits for it no longer than its deadline, and sends nothing."""

from __future__ import annotations

import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import onefold
from onefold import Retrying
from onefold._client.journal import schema
from onefold._kernel.effects import Flow
from onefold.clients import options
from onefold.errors import StoreBusy
from onefold.testing.scripted_server import Reply, ScriptedServer
from tests.client.http.clients import KINDS, Kind


@pytest.fixture
def mute() -> Iterator[str]:
    """A server that takes connections and never says a word, as one behind a firewall that drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"postgresql://u@127.0.0.1:{listener.getsockname()[1]}/journal"


@asynccontextmanager
async def journal_of(given: str, kind: Kind, mute: str) -> AsyncIterator[Any]:
    """The address, or a pool of the application's own."""
    if given == "address":
        yield mute
    elif kind.on_tasks:
        pool = AsyncConnectionPool(mute, min_size=0, max_size=1, open=False)
        await pool.open()
        yield pool
        await pool.close(timeout=0)  # its worker still tries to connect
    else:
        threads = ConnectionPool(mute, min_size=0, max_size=1, open=False)
        threads.open()
        yield threads
        threads.close(timeout=0)


@pytest.mark.parametrize("given", ["address", "pool"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "httpx2" not in kind.name], ids=str)
async def test_a_call_waits_for_its_journal_no_longer_than_its_deadline(kind: Kind, given: str, mute: str) -> None:
    with ScriptedServer([Reply(200)]) as server:
        async with journal_of(given, kind, mute) as journal, kind.opened(Retrying(journal=journal)) as caller:
            refused = pytest.raises(StoreBusy, match="no connection to the key journal")
            with options(deadline_s=0.3), onefold.intent("pay:1"), refused:
                await caller.send("POST", server.url)
    assert server.requests == []


async def test_a_block_waits_for_its_journal_no_longer_than_the_deadline_around_it(mute: str) -> None:
    retrying = Retrying(journal=mute)
    with onefold.deadline(0.3), pytest.raises(StoreBusy), retrying.intent("pay:1"):
        pytest.fail("there is no key")
    with onefold.deadline(0.3), pytest.raises(StoreBusy):
        async with retrying.intent("pay:1"):
            pytest.fail("there is no key")


def test_a_connection_that_comes_too_late_goes_back_to_its_pool(postgres_dsn: str) -> None:
    """The pool has one connection, and all of them come back."""
    with ConnectionPool[psycopg.Connection[Any]](postgres_dsn, min_size=1, max_size=1) as pool:
        held = pool.getconn()
        retrying = Retrying(journal=pool)
        for _ in range(3):
            with onefold.deadline(0.05), pytest.raises(StoreBusy), retrying.intent("pay:1"):
                pytest.fail("there is no key")
        pool.putconn(held)
        with pool.connection(timeout=60) as again:
            again.execute("SELECT 1")


async def test_a_file_without_its_table_that_is_locked_is_asked_again_until_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One wait for the lock must not take longer than the call has: SQLite's own limit is 5 s."""
    asked: list[str] = []
    prepare = schema.prepare

    def watched(dialect: str) -> Flow[None]:
        asked.append(dialect)
        return prepare(dialect)

    monkeypatch.setattr(schema, "prepare", watched)
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as operator, ScriptedServer([Reply(200)]) as server:
        operator.execute("BEGIN EXCLUSIVE")
        client = onefold.retrying(requests.Session(), journal=path)
        with options(deadline_s=2.5), onefold.intent("pay:1"), pytest.raises(StoreBusy):
            client.post(server.url)
    assert server.requests == []
    assert len(asked) > 1
