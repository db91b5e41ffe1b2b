"""A user's program that uses what onefold offers: it is never run, and has no errors for mypy and pyright, both strict.

`make check` has mypy read it with the rest, `make types` has pyright read it beside the installed package.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, assert_type

import httpx
import requests
from fastapi import FastAPI
from flask import Flask
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, Response

import onefold.alembic
import onefold.arq
import onefold.celery
import onefold.dramatiq
import onefold.faststream
import onefold.taskiq
from onefold import (
    AsyncOnefold,
    Depends,
    Keyring,
    Message,
    Onefold,
    OnefoldError,
    Policy,
    Request,
    Retrying,
    RetryPolicy,
    Transaction,
    call,
    deadline,
    derive,
    intent,
    retrying,
    single_principal,
)
from onefold.brokers import Broker, Confirm, Delivery, Subscription
from onefold.brokers.kafka import KafkaBroker
from onefold.brokers.local import LocalBroker
from onefold.brokers.nats import NatsBroker
from onefold.brokers.rabbitmq import RabbitBroker
from onefold.brokers.redis import RedisBroker
from onefold.brokers.webhook import WebhookBroker, read_webhook
from onefold.clients import (
    Backoff,
    BreakerConfig,
    BudgetConfig,
    CallReport,
    HttpAnswer,
    LimiterConfig,
    Reason,
    fallback,
    options,
    report_of,
    time_left_s,
)
from onefold.db import AsyncConnection, AsyncDatabase, BatchItem, Boundary, Connection, Database, Row, Statement
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase, async_sqlite
from onefold.errors import CallNotMade, ConfigurationError, KeyInFlight
from onefold.fastapi import AsyncSessionTx, RequestSession, Tx, authorize_from, principal_from
from onefold.flask import current_session, current_transaction
from onefold.policies import Quota, canonical_json, selected_fields, trusted_header
from onefold.shedding import Aimd, Shedding, shed_asgi
from onefold.sqlalchemy import tx_of
from onefold.starlette import transaction_of
from onefold.telemetry import Claimed, Event, Listener, Relayed
from onefold.testing.conformance import SCENARIOS, Subject, check
from onefold.testing.fault_proxy import FaultProxy
from onefold.testing.memory_broker import AsyncMemoryBroker, MemoryBroker
from onefold.testing.no_waiting import no_waiting
from onefold.testing.scripted_server import Reply, ScriptedServer
from onefold.testing.servers import PrivateNats, PrivatePostgres


def listen(event: Event) -> None:
    match event:
        case Claimed(operation=operation, outcome=outcome):
            print(operation, outcome)
        case Relayed(published=published):
            print(published)
        case _:
            pass


listener: Listener = listen


def account(request: Request) -> str | None:
    return request.header("account")


once = AsyncOnefold(
    "postgresql://localhost/shop",
    source="shop",
    broker=lambda: NatsBroker("nats://localhost"),
    principal=account,
    defaults={"wait_s": 5, "fingerprint": canonical_json},
    sealer=Keyring({"2026": bytes(32)}, write="2026"),
    listener=listener,
    shedding=Shedding(law=Aimd, limit=LimiterConfig(most=50)),
    quota=Quota(in_flight=10),
)
threaded = Onefold("shop.db", principal=single_principal, source="shop")
app = FastAPI()


def current_user() -> int:
    return 7


@app.post("/payments")
@once.idempotent(
    required=True,
    principal=principal_from(current_user, lambda user: str(user)),
    authorize=authorize_from(current_user),
    fingerprint=selected_fields("amount"),
)
async def pay(amount: int, tx: Tx[AsyncSqlite]) -> dict[str, str]:
    assert_type(tx, Transaction[AsyncSqlite])
    rows = await tx.connection.fetch("SELECT ?", (amount,))
    event = await tx.publish("payment.made", {"rows": len(rows)}, key=amount)
    async with tx.savepoint():
        await tx.cancel(event)
    tx.after_commit(print, "paid", end="")
    return {"paid": str(amount)}


@app.get("/payments")
def payments(session: RequestSession) -> list[int]:
    return list(session.connection().exec_driver_sql("SELECT 1").scalars())


@app.put("/payments")
@once.idempotent(principal=trusted_header("account"))
async def replace(session: AsyncSessionTx) -> None:
    await tx_of(session).publish("payment.replaced", {})


@once.idempotent()
async def order(request: StarletteRequest) -> Response:
    tx: Transaction[AsyncSqlite] = transaction_of(request)
    await tx.connection.execute("SELECT 1")
    return JSONResponse({})


flask = Flask("shop")


@flask.post("/orders")
@threaded.idempotent()
def place() -> str:
    tx: Transaction[sqlite3.Connection] = current_transaction()
    tx.connection.execute("SELECT 1")
    current_session().commit()
    return "placed"


@dataclass
class Order:
    item: str


def price() -> int:
    return 7


@once.consumer("billing", topic="order.placed", order="strict", attempts=3)
async def bill(placed: Order, tx: Transaction[AsyncSqlite], costs: Annotated[int, Depends(price)]) -> None:
    await tx.publish("order.billed", {"item": placed.item, "costs": costs})


@threaded.consumer("mail", topic=["order.placed", "order.billed"])
def mail(message: Message, tx: Transaction[sqlite3.Connection]) -> None:
    print(message.key, message.json(), tx.connection)


@onefold.faststream.handled_once(once, "stock")
async def stock(body: dict[str, str], tx: Transaction[AsyncSqlite]) -> None: ...


@onefold.arq.handled_once(once, "parcels")
async def parcels(context: dict[str, Any], tx: Transaction[AsyncSqlite]) -> None: ...


ALEMBIC = (onefold.alembic.include_name, onefold.alembic.upgrade)
QUEUES = (onefold.celery.handled_once, onefold.dramatiq.handled_once, onefold.taskiq.handled_once)


async def work() -> None:
    await once.migrate()
    routes: dict[str, Policy] = {"POST /orders": once.policy(required=True)}
    once.install(app)
    threaded.install(flask)
    shed_asgi(once.asgi(app, routes), Shedding())
    async with once.relaying(lease_s=5), once.consuming(only=["billing"]), once.reaping():
        async with once.transaction() as tx:
            await tx.publish("order.placed", {"item": "book"})
        async with once.handling("billing", "m-1") as handled:
            if handled is not None:
                await handled.publish("order.billed", {})
        print((await once.reap()).records)
    await once.close()


def work_on_threads() -> None:
    with threaded.relaying(), threaded.consuming(), threaded.transaction() as tx:
        print(tx.publish("order.placed", {"item": "book"}))
    with threaded.handling("billing", "m-1") as handled:
        assert_type(handled, Transaction[Any] | None)
    threaded.close()


POLICY = RetryPolicy(
    attempts_max=3, backoff=Backoff(cap_s=5), budget=BudgetConfig(ratio=0.2), breaker=BreakerConfig(open_s=1)
)


def pending(ended: HttpAnswer | Exception) -> bool | None:
    return True if isinstance(ended, HttpAnswer) and ended.status == 202 else None


def no_price(error: Exception) -> int:
    return 0


@fallback(no_price, on=(CallNotMade, ConnectionError))
def ask_price(item: str) -> int:
    return len(item)


def calls() -> None:
    client = retrying(httpx.Client(), POLICY, retry_if=pending)
    assert_type(client, httpx.Client)
    session = retrying(requests.Session())
    assert_type(session, requests.Session)
    with deadline(2), intent(f"pay:{derive('pay', 42)}"), options(attempts_max=1):
        report: CallReport | None = report_of(client.post("https://shop.test/payments"))
        print(report.reason is Reason.DEADLINE if report else None, time_left_s())
    with call() as key:
        print(key)
    many = Retrying(POLICY, journal="intents.db", generate_keys={"api.stripe.com"})

    @many.calls("ledger", on=ConnectionError)
    def book(amount: int) -> str:
        return str(amount)

    assert_type(book(1), str)
    with many.intent("pay:42") as key:
        print(key)


class OwnBroker:
    """A broker of the user's own."""

    keep_every_s = 5.0
    redelivery_s = 60.0

    async def open(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return [None for _ in messages]

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        raise ConfigurationError("this one only sends")

    async def close(self) -> None: ...


class OwnConnection:
    """A driver of the user's own."""

    handle = 7

    def batch(self, steps: Sequence[BatchItem]) -> int:
        return sum(isinstance(step, Boundary) for step in steps)

    def fetch(self, statement: Statement) -> list[Row]:
        return [(statement.sql, *statement.values)]

    def release(self) -> None: ...

    def discard(self) -> None: ...


class OwnDatabase:
    dialect = "sqlite"

    def acquire(self) -> Connection[int]:
        return OwnConnection()

    def close(self) -> None: ...


def parts(database: AsyncDatabase[Any], connection: AsyncConnection[Any], delivery: Delivery) -> tuple[object, ...]:
    brokers: list[Broker] = [
        OwnBroker(),
        KafkaBroker("localhost:9092"),
        LocalBroker(database),
        NatsBroker("nats://localhost"),
        RabbitBroker("amqp://localhost"),
        RedisBroker("redis://localhost"),
    ]
    webhooks = WebhookBroker("https://shop.test", secret="whsec_c2VjcmV0")
    sync: list[Database[Any]] = [OwnDatabase(), SqliteDatabase("shop.db"), PsycopgDatabase("postgresql://localhost")]
    tasks: list[AsyncDatabase[Any]] = [
        async_sqlite("shop.db"),
        AsyncpgDatabase("postgresql://localhost"),
        AsyncPsycopgDatabase("postgresql://localhost"),
    ]
    engines = (SqlalchemyDatabase, AsyncSqlalchemyDatabase)
    read = read_webhook("whsec_c2VjcmV0", delivery.headers, delivery.data)
    return brokers, webhooks, sync, tasks, engines, read, connection.handle


async def tests() -> None:
    broker = AsyncMemoryBroker(once, raises=False)
    print(await broker.publish("order.placed", {"item": "book"}), broker.published)
    print(MemoryBroker(threaded).deliver())
    subject = Subject(
        database=SqliteDatabase("shop.db"),
        execute=lambda handle, sql: handle.execute(sql),
        nested=lambda handle, sql, keep: None,
        commit=lambda handle: handle.commit(),
    )
    for scenario in SCENARIOS:
        check(scenario, subject)
    with PrivateNats() as nats, ScriptedServer([Reply(200)]) as server, no_waiting():
        print(nats.url, server.url)
    with PrivatePostgres() as postgres, FaultProxy("127.0.0.1", postgres.port) as proxy:
        proxy.switch("black_hole")
        print(proxy.dsn(postgres.dsn))


if __name__ == "__main__":
    try:
        asyncio.run(work())
    except KeyInFlight as error:
        print(error.retry_after_s)
    except OnefoldError as error:
        print(error)
