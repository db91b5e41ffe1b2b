"""onefold through a real PgBouncer in transaction mode, with the drivers' statement caches off, and on:
docs/pgbouncer.md. `make pgbouncer` has apt install it, without its service."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import psycopg
import pytest
from fastapi import FastAPI
from psycopg_pool import AsyncConnectionPool

from onefold import AsyncOnefold, Message, Onefold, Transaction, single_principal
from onefold.errors import StatementRefused
from onefold.fastapi import Tx
from tests.support.patience import PATIENCE_S

PROGRAM = shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no pgbouncer: `make pgbouncer`, as root")


@pytest.fixture
def bounced_dsn(postgres_dsn: str) -> Iterator[str]:
    """The same database, through a PgBouncer with four server connections for everyone."""
    server = urlsplit(postgres_dsn)
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # It refuses to run as root, and must be able to read its files.
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        users = folder / "users.txt"
        users.write_text(f'"{server.username}" "{server.password}"\n')
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n{server.path[1:]} = host={server.hostname} port={server.port} password={server.password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = plain\n"
            f"auth_file = {users}\npool_mode = transaction\ndefault_pool_size = 4\n"
        )
        command = [str(PROGRAM), "--quiet", "--user", "nobody", str(settings)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, process)
            yield postgres_dsn.replace(f":{server.port}/", f":{port}/")
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, "PgBouncer ended"
        assert time.monotonic() < give_up_at, "PgBouncer does not listen"
        time.sleep(0.02)


@asynccontextmanager
async def asyncpg_pool(dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=6, statement_cache_size=0) as pool:
        yield pool


@asynccontextmanager
async def psycopg_pool(dsn: str) -> AsyncIterator[Any]:
    async with AsyncConnectionPool(dsn, min_size=1, max_size=6, kwargs={"prepare_threshold": None}) as pool:
        yield pool


@asynccontextmanager
async def asyncpg_pool_with_cache(dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=6) as pool:
        yield pool


@asynccontextmanager
async def psycopg_pool_with_cache(dsn: str) -> AsyncIterator[Any]:
    async with AsyncConnectionPool(dsn, min_size=1, max_size=6, kwargs={"prepare_threshold": 0}) as pool:
        yield pool


@asynccontextmanager
async def selling(pool: Any) -> AsyncIterator[tuple[list[int], AsyncOnefold, asyncio.Event]]:
    """Ten requests with two keys at once: their answers, and what relays and consumes the two events."""
    once = AsyncOnefold(pool, principal=single_principal, source="shop", broker="local")
    app, handled = FastAPI(), asyncio.Event()
    once.install(app)

    @app.post("/orders")
    @once.idempotent(required=True, wait_s=30)
    async def order(tx: Tx[Any]) -> dict[str, bool]:
        await tx.connection.execute("INSERT INTO made VALUES ('order')")
        await tx.publish("order.placed", {}, key="k")
        return {"placed": True}

    @once.consumer("stock", topic="order.placed")
    async def take(message: Message, tx: Transaction[Any]) -> None:
        await tx.connection.execute("INSERT INTO made VALUES ('stock')")
        tx.after_commit(handled.set)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        asked = [client.post("/orders", headers={"Idempotency-Key": f'"{number % 2}"'}) for number in range(10)]
        answers = [answer.status_code for answer in await asyncio.gather(*asked)]
    yield answers, once, handled
    await once.close()


@pytest.fixture(autouse=True)
def tables(postgres_dsn: str) -> None:
    """Made on the server itself, as migrations are."""
    with psycopg.connect(postgres_dsn) as database:
        database.execute("CREATE TABLE made (what text)")
    with closing(Onefold(postgres_dsn)) as once:
        once.migrate()


@pytest.mark.parametrize("make_pool", [asyncpg_pool, psycopg_pool])
async def test_requests_and_messages_happen_once_through_pgbouncer(
    make_pool: Callable[[str], Any], bounced_dsn: str, postgres_dsn: str
) -> None:
    async with make_pool(bounced_dsn) as pool, selling(pool) as (answers, once, handled):
        assert answers == [200] * 10
        with psycopg.connect(postgres_dsn) as database:
            assert database.execute("SELECT count(*) FROM made").fetchone() == (2,)
        async with once.relaying(), once.consuming():
            await asyncio.wait_for(handled.wait(), PATIENCE_S)


class LogWatch(logging.Handler):
    """Sets `seen` when a line has the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.seen = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.seen.set()


@pytest.mark.parametrize("make_pool", [asyncpg_pool_with_cache, psycopg_pool_with_cache])
async def test_control_with_the_cache_of_the_driver_on_the_same_does_not_go_through(
    make_pool: Callable[[str], Any], bounced_dsn: str
) -> None:
    watch = LogWatch('prepared statement "')
    logging.getLogger("onefold").addHandler(watch)
    refused: StatementRefused | None = None
    try:
        async with make_pool(bounced_dsn) as pool, selling(pool) as (_, once, _), once.relaying(), once.consuming():
            await asyncio.wait_for(watch.seen.wait(), PATIENCE_S)
    except StatementRefused as error:  # another's statement was executed under that name: its answer was not expected
        refused = error
    finally:
        logging.getLogger("onefold").removeHandler(watch)
    assert watch.seen.is_set() or refused is not None
