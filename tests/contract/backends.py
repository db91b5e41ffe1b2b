"""The four backends a scenario runs in: ASGI or WSGI, on SQLite or Postgres, behind one interface without a colour.

A scenario asks, the application obeys its plan. The plan travels in a header, which is no part of what makes two
requests the same: so a retry may find a handler that behaves differently.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import asyncpg
import psycopg
from psycopg_pool import ConnectionPool

from onefold import AsyncOnefold, Onefold, Request
from onefold._http import asgi, wsgi
from onefold._http.route_policy import Settings
from onefold._idempotency.encryption import Sealer
from onefold.telemetry import Event
from tests.contract.frameworks import Rescued, flask_orders, starlette_orders
from tests.contract.plans import Call, Desk, Plan, RequestGuard, driven
from tests.contract.rows import POSTGRES, BackendName
from tests.contract.wire import Answer, Arrival, HeaderLines, Line, Question, serve_asgi, serve_wsgi
from tests.support.patience import PATIENCE_S

T = TypeVar("T")

CONNECTIONS_MAX = 8
ORDER = {"item": "book", "cents": 500}


@dataclass(frozen=True, slots=True)
class Record:
    """A stored row."""

    status: int
    headers: bytes
    body: bytes | None


@dataclass(slots=True)
class Pending:
    """A request under way, and the client's end of its connection."""

    future: Future[Answer]
    line: Line

    def answer(self) -> Answer:
        return self.future.result(PATIENCE_S)


class Backend:
    """An application with onefold around it, and everything a scenario wants to know about both."""

    def __init__(self, name: BackendName, address: str) -> None:
        self.name = name
        #: The path of the SQLite file, or the DSN.
        self.address = address
        self.calls: list[Call] = []
        self.events: list[Event] = []
        #: Whether a limiter inside the layer turns requests away before they reach the handler.
        self.shedding = False
        #: Whether the application is written for Starlette or Flask.
        self.framework = False
        #: The address that has the tables already.
        self.prepared: str | None = None
        self._serving = False
        self._numbers = itertools.count()
        self._plans: dict[str, Plan] = {}
        self._guards: list[RequestGuard] = []
        self._closing = contextlib.ExitStack()

    @property
    def is_postgres(self) -> bool:
        return self.name in POSTGRES

    # --- the application ---

    def serve(
        self,
        *,
        database: object | None = None,
        sealer: Sealer | None = None,
        development: bool = False,
        routes: Mapping[str, Settings] | None = None,
        settings: Settings | None = None,
        framework: bool = False,
    ) -> None:
        """Start the application, as a new process would. `settings` hold for all its idempotent routes. Written for a
        framework (Starlette, Flask), it has exception handlers and background tasks, and `POST /orders` only."""
        self.prepare()
        self._serving = True
        self.framework = framework
        own = dict.fromkeys(ROUTES, Settings()) if routes is None else routes
        self._start(
            self.database if database is None else database,
            {name: Settings(**{**(settings or {}), **given}) for name, given in own.items()},
            {
                "principal": account_of,
                "sealer": sealer,
                "listener": self.events.append,
                "development": development,
                "source": "orders",
            },
        )

    def prepare(self) -> None:
        """Create the tables, once."""
        if self.prepared != self.address:
            self.prepared = self.address
            create_tables(self.address)

    # --- the client ---

    def post(self, path: str = "/orders", body: object = ORDER, **how: Any) -> Answer:
        return self.start(path, body, **how).answer()

    def start(
        self,
        path: str = "/orders",
        body: object = ORDER,
        *,
        key: str | bytes | None = None,
        account: str = "acme",
        plan: Plan | None = None,
        headers: HeaderLines = (),
        media_type: str = "application/json",
        method: str = "POST",
        query: str = "",
        mount: str = "",
        arrival: Arrival = "whole",
        answered: Callable[[], object] = lambda: None,
    ) -> Pending:
        """Ask without waiting for the answer."""
        if not self._serving:
            self.serve()
        plan = Plan() if plan is None else plan
        if plan.guard is not None:
            self._guards.append(plan.guard)
        number = str(next(self._numbers))
        self._plans[number] = plan
        lines: HeaderLines = (
            *((("idempotency-key", key),) if key is not None else ()),
            ("authorization", f"Bearer {account}.{number}"),
            ("content-type", media_type),
            ("x-plan", number),
        )
        question = Question(
            method=method,
            path=path,
            mount=mount,
            query=query,
            headers=(*(line for line in lines if line[0] not in dict(headers)), *headers),
            body=body if isinstance(body, bytes) else json.dumps(body).encode(),
            arrival=arrival,
        )
        line = Line(answered)
        return Pending(self._ask(question, line), line)

    def get(self, path: str, **how: Any) -> Answer:
        return self.start(path, b"", method="GET", **how).answer()

    def status_of(self, key: str, operation: str = "POST /orders", **how: Any) -> dict[str, Any]:
        """What the status resource says about a key."""
        answer = self.get("/onefold/status", query=f"operation={operation.replace(' ', '%20')}", key=key, **how)
        assert answer.status == 200, answer
        return answer.json

    # --- the handler ---

    async def handle(self, desk: Desk, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Plan:
        """The handler of every route."""
        plan = self._plans[headers["x-plan"]]
        if self.shedding:
            return Plan(status=503, body=b"too busy")
        item = _item(body)
        self.calls.append(Call(f"{method} {path}", item, headers["authorization"].split(".")[0]))
        if plan.writes and desk.tx is not None:
            await desk.execute("INSERT INTO orders (item) VALUES (:1)", item)
        if plan.guard is not None:
            await desk.pass_guard(plan.guard)
        if plan.acts is not None:
            await plan.acts(desk)
        if plan.rescued is not None:
            raise Rescued(plan.rescued)
        if plan.error is not None:
            raise plan.error
        return plan

    # --- the database ---

    def rows(self) -> list[str]:
        """The business rows."""
        return [item for (item,) in self.sql("SELECT item FROM orders ORDER BY item")]

    def records(self) -> list[Record]:
        found = self.sql("SELECT status, headers, body FROM onefold_record ORDER BY digest")
        return [Record(s, bytes(h), None if b is None else bytes(b)) for s, h, b in found]

    def expire_all(self) -> None:
        """Let the retention of every record be over."""
        then = "expires_at = 'epoch'" if self.is_postgres else "expires_at_ms = 1"
        self.sql(f"UPDATE onefold_record SET {then}")

    def end_leases(self) -> None:
        """Let the lease of every request in flight run out: a timeout of the Postgres server's."""
        self.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND state = 'idle in transaction'"
        )

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """A statement of the test's own, on a connection of its own."""
        if self.is_postgres:
            with psycopg.connect(self.address, autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []
        with contextlib.closing(sqlite3.connect(self.address, timeout=PATIENCE_S, isolation_level=None)) as file:
            return file.execute(statement).fetchall()

    def close(self) -> None:
        for guard in self._guards:
            guard.open()
        self._closing.close()

    # --- the colour ---

    @property
    def database(self) -> object:
        raise NotImplementedError

    def reap(self) -> int:
        """Forget what has expired; how many records that were."""
        raise NotImplementedError

    def _start(self, database: object, routes: dict[str, Settings], options: dict[str, Any]) -> None:
        raise NotImplementedError

    def _ask(self, question: Question, line: Line) -> Future[Answer]:
        raise NotImplementedError


#: The idempotent routes an application has unless a scenario names others.
ROUTES = ("POST /orders", "PATCH /orders", "PUT /orders", "DELETE /orders", "POST /orders/{id}/refunds")


def create_tables(address: str) -> None:
    once = Onefold(address)
    once.migrate()
    with once.transaction() as tx:
        tx.connection.execute("CREATE TABLE orders (item TEXT NOT NULL)")
    once.close()


def account_of(request: Request) -> str | None:
    """The principal: the account in a token that is new on every attempt."""
    token = (request.header("authorization") or "").removeprefix("Bearer ")
    return token.partition(".")[0] or None


def _item(body: bytes) -> str:
    try:
        read = json.loads(body)
    except ValueError:
        return body.decode("latin-1")
    return str(read.get("item", "")) if isinstance(read, dict) else str(read)


class WsgiBackend(Backend):
    """Onefold on threads."""

    def __init__(self, name: BackendName, address: str) -> None:
        super().__init__(name, address)
        threads = self._closing.enter_context(ThreadPoolExecutor(24, thread_name_prefix="contract"))
        self._submit: Callable[..., Future[Answer]] = threads.submit
        self._database: object = self.address
        if self.is_postgres:
            self._database = self._closing.enter_context(
                ConnectionPool(self.address, min_size=0, max_size=CONNECTIONS_MAX, open=True)
            )

    @property
    def database(self) -> object:
        return self._database

    def reap(self) -> int:
        return self._once.reap().records

    def _start(self, database: object, routes: dict[str, Settings], options: dict[str, Any]) -> None:
        self._once = once = Onefold(database, **options)
        self._closing.callback(once.close)
        if self.framework:
            self._app = flask_orders(self, once, routes["POST /orders"])
            return
        self._app = once.wsgi(self._application, {name: once.policy(**given) for name, given in routes.items()})

    def _ask(self, question: Question, line: Line) -> Future[Answer]:
        return self._submit(serve_wsgi, self._app, question, line)

    def _application(self, environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterator[bytes]:
        headers = {name[5:].lower().replace("_", "-"): value for name, value in environ.items() if name[:5] == "HTTP_"}
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
        desk = Desk(self.name, environ.get(wsgi.TRANSACTION))
        plan = driven(self.handle(desk, environ["REQUEST_METHOD"], environ["PATH_INFO"], headers, body))
        start_response(f"{plan.status} {_phrase(plan.status)}", list(plan.headers))
        yield from plan.parts()
        if plan.breaks is not None:
            raise plan.breaks


class AsgiBackend(Backend):
    """AsyncOnefold on a loop that runs on a thread of its own."""

    def __init__(self, name: BackendName, address: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name, address)
        self._loop = loop
        self._database: object = self.address
        if self.is_postgres:
            pool = self.run(_pool(self.address))
            self._closing.callback(lambda: self.run(pool.close()))
            self._database = pool

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    @property
    def database(self) -> object:
        return self._database

    def reap(self) -> int:
        return self.run(self._once.reap()).records

    def _start(self, database: object, routes: dict[str, Settings], options: dict[str, Any]) -> None:
        self._once = once = AsyncOnefold(database, **options)
        self._closing.callback(lambda: self.run(once.close()))
        if self.framework:
            self._app = starlette_orders(self, once, routes["POST /orders"])
            return
        self._app = once.asgi(self._application, {name: once.policy(**given) for name, given in routes.items()})

    def _ask(self, question: Question, line: Line) -> Future[Answer]:
        return asyncio.run_coroutine_threadsafe(serve_asgi(self._app, question, line), self._loop)

    async def _application(self, scope: Any, receive: asgi.Receive, send: asgi.Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        desk = Desk(self.name, scope.get(asgi.TRANSACTION))
        plan = await self.handle(desk, scope["method"], scope["path"], headers, body)
        lines = [(name.encode(), value.encode("latin-1")) for name, value in plan.headers]
        await send({"type": "http.response.start", "status": plan.status, "headers": lines})
        parts = plan.parts()
        for number, part in enumerate(parts, 1):
            more = number < len(parts) or plan.breaks is not None
            await send({"type": "http.response.body", "body": part, "more_body": more})
        if plan.breaks is not None:
            raise plan.breaks


async def _pool(dsn: str) -> asyncpg.Pool[asyncpg.Record]:
    return await asyncpg.create_pool(dsn, min_size=0, max_size=CONNECTIONS_MAX)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"
