"""A private server is on loopback, where every account of the machine is: it lets in who has its password."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import psycopg
import pytest
import redis.asyncio
from aiormq.exceptions import ProbableAuthenticationError

from onefold.testing.servers import PrivateServer
from onefold.testing.servers._process import converse

WRONG = "0" * 32


async def over_psycopg(url: str) -> None:
    connection = await psycopg.AsyncConnection.connect(url)
    await connection.close()


async def over_nats(url: str) -> None:
    """By hand: its client, refused, leaves its socket open."""
    place = urlsplit(url)
    assert place.port is not None
    account = {"verbose": False, "user": place.username, "pass": place.password}
    question = f"CONNECT {json.dumps(account)}\r\nPING\r\n".encode()
    answer = await asyncio.to_thread(converse, place.port, question, b"PONG\r\n")
    if b"PONG\r\n" not in answer:
        raise PermissionError(answer.decode())


async def over_redis(url: str) -> None:
    async with redis.asyncio.Redis.from_url(url, protocol=2) as client:
        await client.get("anything")


async def over_aio_pika(url: str) -> None:
    connection = await aio_pika.connect(url)
    await connection.close()


Connect = Callable[[str], Awaitable[None]]
SERVERS: dict[str, tuple[Connect, type[Exception], str]] = {
    "postgres": (over_psycopg, psycopg.OperationalError, "password"),
    "postgres_16": (over_psycopg, psycopg.OperationalError, "password"),
    "nats": (over_nats, PermissionError, "Authorization Violation"),
    "valkey": (over_redis, redis.exceptions.RedisError, "(?i)authentication required|invalid username-password"),
    "rabbitmq": (over_aio_pika, ProbableAuthenticationError, "ACCESS_REFUSED"),
}
ATTEMPTS: dict[str, Callable[[str, str], str]] = {
    "no password": lambda url, account: url.replace(account, account.partition(":")[0] + "@"),
    "no account": lambda url, account: url.replace(account, ""),
    "a wrong password": lambda url, account: url.replace(account, f"{account.partition(':')[0]}:{WRONG}@"),
    "the guest of every installation": lambda url, account: url.replace(account, "guest:guest@"),
}


@pytest.fixture(params=SERVERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(name: str, request: pytest.FixtureRequest) -> PrivateServer:
    found: PrivateServer = request.getfixturevalue(name)
    return found


def address(server: Any) -> str:
    return str(server.url)


def password(server: PrivateServer) -> str:
    found = urlsplit(address(server)).password
    assert found
    return found


@pytest.mark.parametrize("attempt", ATTEMPTS)
async def test_who_has_not_the_password_is_refused(
    name: str, server: PrivateServer, attempt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    connect, refusal, said = SERVERS[name]
    await connect(address(server))
    account = address(server).partition("//")[2].partition("@")[0] + "@"
    with pytest.raises(refusal, match=said):
        await connect(ATTEMPTS[attempt](address(server), account))


def test_the_password_is_in_no_command(server: PrivateServer) -> None:
    shown = commands()
    assert str(server.directory) in shown, "the control: the listing shows this server"
    assert password(server) not in shown


def commands() -> str:
    said = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said.append((process / "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return b"\n".join(said).decode(errors="replace")


def test_no_other_account_can_read_the_password_in_a_file(name: str, server: PrivateServer) -> None:
    home = server.directory
    holding = [file for file in home.rglob("*") if file.is_file() and password(server).encode() in file.read_bytes()]
    assert bool(holding) == (not name.startswith("postgres")), "PostgreSQL keeps what the password can be checked by"
    for file in holding:
        inside = [file, *(folder for folder in file.parents if folder.is_relative_to(home))]
        assert any(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in inside), file


def test_no_two_servers_have_one_password(
    postgres: PrivateServer, nats: PrivateServer, valkey: PrivateServer, rabbitmq: PrivateServer
) -> None:
    assert len({password(server) for server in (postgres, nats, valkey, rabbitmq)}) == 4
