"""Which files and functions of onefold one request, one event and one client's call cross: how much there is to read.

    python -m benchmarks.hops                   # the counts, and which files they are in
    python -m benchmarks.hops --functions       # each function, too, in the order in which it is first called

Counted with `sys.setprofile` on every thread, on the second of two equal operations: the first fills caches and
prepares statements. Lambdas and comprehensions belong to the function that they stand in.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import asyncpg
import httpx
import psycopg
from fastapi import FastAPI
from flask import Flask
from psycopg_pool import ConnectionPool
from pydantic import BaseModel

import onefold
from benchmarks.client.loopback import serving
from benchmarks.guards import Application
from benchmarks.load import BODY
from benchmarks.stores import postgres_place, private_postgres, sqlite_place
from onefold.db.sqlite import AsyncSqlite
from onefold.fastapi import Tx
from onefold.flask import current_transaction

_SOURCE: Final = Path(onefold.__file__).parent


@dataclass(slots=True)
class Hops:
    """What was crossed: how often each function, by its file and its qualified name, in the order of first calls."""

    functions: dict[tuple[str, str], int] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, int]:
        """How many functions of each file, in the order of the first."""
        counts: dict[str, int] = {}
        for file, _ in self.functions:
            counts[file] = counts.get(file, 0) + 1
        return counts

    @property
    def calls(self) -> int:
        """Calls, and resumptions of coroutines."""
        return sum(self.functions.values())


class Profile:
    """Follows all threads that are started while it is installed, and the one that installs it."""

    def __init__(self) -> None:
        self._hops: Hops | None = None

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or self._hops is None:
            return
        path, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if not path.startswith(str(_SOURCE)) or name.endswith(">"):
            return
        crossed = (str(Path(path).relative_to(_SOURCE)), name)
        self._hops.functions[crossed] = self._hops.functions.get(crossed, 0) + 1

    @contextmanager
    def count(self) -> Iterator[Hops]:
        self._hops = hops = Hops()
        try:
            yield hops
        finally:
            self._hops = None


@contextmanager
def profiled() -> Iterator[Profile]:
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield profile
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def count_all() -> Iterator[tuple[str, Hops]]:
    """Every subject, each on a database of its own."""
    with private_postgres() as server, tempfile.TemporaryDirectory() as folder, profiled() as profile:
        place = postgres_place(server)
        yield "POST, FastAPI over asyncpg", asyncio.run(post_over_asyncpg(place, profile))
        place = sqlite_place(Path(folder), "posts")
        yield "POST, FastAPI over SQLite", asyncio.run(post_over_sqlite(place, profile))
        place = postgres_place(server)
        yield "POST, Flask over psycopg", post_over_psycopg(place, profile)
        place = sqlite_place(Path(folder), "events")
        yield "event over the local broker, SQLite", asyncio.run(event_over_sqlite(place, profile))
        yield "GET by a client of httpx", get_with_httpx(profile)


_ACCOUNTS: Final = {"acct_4711": "acme"}


def account_of(request: onefold.Request) -> str | None:
    return _ACCOUNTS.get(request.header("x-account") or "")


class Payment(BaseModel):
    account: str
    amount: int


async def post_over_asyncpg(place: str, profile: Profile) -> Hops:
    async with asyncpg.create_pool(place, min_size=1, max_size=1) as pool:
        app = FastAPI()
        once = onefold.AsyncOnefold(pool, principal=account_of)
        once.install(app)

        @app.post("/payments", status_code=201)
        @once.idempotent(required=True)
        async def pay(payment: Payment, tx: Tx[Any]) -> dict[str, str]:
            await tx.connection.execute(
                "INSERT INTO payments (account, amount) VALUES ($1, $2)", payment.account, payment.amount
            )
            return {"state": "paid"}

        return await _second_post(app, profile)


async def post_over_sqlite(place: str, profile: Profile) -> Hops:
    app = FastAPI()
    once = onefold.AsyncOnefold(place, principal=account_of)
    once.install(app)

    @app.post("/payments", status_code=201)
    @once.idempotent(required=True)
    async def pay(payment: Payment, tx: Tx[AsyncSqlite]) -> dict[str, str]:
        await tx.connection.execute(
            "INSERT INTO payments (account, amount) VALUES (?, ?)", (payment.account, payment.amount)
        )
        return {"state": "paid"}

    hops = await _second_post(app, profile)
    await once.close()
    return hops


async def _second_post(app: FastAPI, profile: Profile) -> Hops:
    async with app.router.lifespan_context(app):
        application = Application(app)
        await application.post_all(1, start=1)
        with profile.count() as hops:
            await application.post_all(1, start=2)
    return hops


def post_over_psycopg(place: str, profile: Profile) -> Hops:
    with ConnectionPool(place, min_size=1, max_size=1) as pool:
        app = Flask(__name__)
        once = onefold.Onefold(pool, principal=account_of)

        @app.post("/payments")
        @once.idempotent(required=True)
        def pay() -> tuple[dict[str, str], int]:
            connection: psycopg.Connection = current_transaction().connection
            connection.execute("INSERT INTO payments (account, amount) VALUES (%s, %s)", ("acct_4711", 100))
            return {"state": "paid"}, 201

        once.install(app)
        client = app.test_client()

        def post(key: str) -> None:
            headers = {"x-account": "acct_4711", "idempotency-key": key, "content-type": "application/json"}
            answer = client.post("/payments", data=BODY, headers=headers)
            if answer.status_code != 201:
                raise SystemExit(f"the request was answered {answer.status_code}, so there is nothing to count")

        post('"key-1"')
        with profile.count() as hops:
            post('"key-2"')
    return hops


async def event_over_sqlite(place: str, profile: Profile) -> Hops:
    """From the beginning of the transaction that publishes until the handler is entered, polls in between included."""
    once = onefold.AsyncOnefold(place, source="/benchmarks", broker="local")
    handled: asyncio.Queue[None] = asyncio.Queue()

    @once.consumer("fulfilment", topic="orders.placed")
    async def fulfil(message: onefold.Message) -> None:
        handled.put_nowait(None)

    async def publish() -> None:
        async with once.transaction() as tx:
            await tx.publish("orders.placed", {"order": 1})
        await handled.get()

    async with once.relaying(), once.consuming():
        await publish()
        with profile.count() as hops:
            await publish()
    await once.close()
    return hops


def get_with_httpx(profile: Profile) -> Hops:
    with serving() as url, httpx.Client(transport=onefold.retrying(httpx.HTTPTransport())) as client:
        client.get(url)
        with profile.count() as hops:
            client.get(url)
    return hops


def show(subject: str, hops: Hops, *, functions: bool) -> str:
    lines = [f"{subject}: {len(hops.files)} files, {len(hops.functions)} functions, {hops.calls} calls"]
    if functions:
        lines += [f"  {file:40} {name} x{calls}" for (file, name), calls in hops.functions.items()]
    else:
        lines += [f"  {count:4} {file}" for file, count in hops.files.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--functions", action="store_true", help="list each function instead of each file's count")
    parser.add_argument("--only", default="", help="subjects whose name has this in it, as in --only asyncpg")
    options = parser.parse_args()
    for subject, hops in count_all():
        if options.only.lower() in subject.lower():
            print(show(subject, hops, functions=options.functions), flush=True)


if __name__ == "__main__":
    main()
