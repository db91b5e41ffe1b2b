"""The shop as a WSGI application, on SQLite and on Postgres."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onefold._http.request_guard import RequestGuard
from onefold._http.wsgi import TRANSACTION, Application, Environ, IdempotencyMiddleware, StartResponse
from onefold._kernel.ports import Database
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase
from tests.crash.harness import LEASES_S, guard_for
from tests.crash.shop import Books, Insert, Shop, insert_psycopg, insert_sqlite, open_books, routes
from tests.support.crash import Act, Boundaries
from tests.support.invariants import Attempt, Reply
from tests.support.patience import PATIENCE_S


@dataclass(slots=True)
class WsgiHold:
    """A request in its handler, on a thread of its own."""

    entered: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)
    future: Future[Attempt] | None = None

    def let_go(self) -> None:
        self.may_end.set()

    def ended(self) -> Attempt:
        self.let_go()
        assert self.future is not None
        return self.future.result(PATIENCE_S)


class WsgiHarness:
    """The shop on the thread that asks."""

    def __init__(
        self,
        database: Database[Any],
        insert: Insert,
        books: Books,
        rival: WsgiHarness | None,
        *,
        guard: RequestGuard | None = None,
        splits: bool = False,
        **settings: Any,
    ) -> None:
        self.database = database
        self.dialect = database.dialect
        self.books = books
        self.lease_s: float = settings.setdefault("lease_s", LEASES_S[database.dialect])
        self.boundaries = Boundaries()
        self.shop = Shop(self.boundaries, splits=books if splits else None)
        self._insert = insert
        self._holds: dict[str, WsgiHold] = {}
        self._threads = ThreadPoolExecutor()
        guard = guard or guard_for(database.dialect)
        resolve = routes(**settings).resolve
        bounded = self.boundaries.around(database)
        self._app = IdempotencyMiddleware(self._handler, guard=guard, database=bounded, resolve=resolve)
        self._uncounted = IdempotencyMiddleware(self._handler, guard=guard, database=database, resolve=resolve)
        self.rival = rival

    def ask_elsewhere(self, route: str, key: str, payload: str) -> Attempt:
        assert self.rival is not None
        return self.rival.ask_on_a_thread(route, key, payload)

    def ask_on_a_thread(self, route: str, key: str, payload: str) -> Attempt:
        """For whoever is inside a request already: a thread of its own is inside of nothing."""
        return self._threads.submit(self.ask, route, key, payload).result(PATIENCE_S)

    def ask(self, route: str, key: str | None, payload: str, *, act: Act | None = None) -> Attempt:
        self.boundaries.crossings.clear()
        self.boundaries.act = act
        thread = threading.get_ident()
        self.boundaries.counts = lambda: threading.get_ident() == thread
        try:
            return _asked(self._app, route, key, payload)
        finally:
            self.boundaries.act = None

    def hold(self, route: str, key: str, payload: str) -> WsgiHold:
        hold = self._holds[key] = WsgiHold()
        hold.future = self._threads.submit(_asked, self._uncounted, route, key, payload)
        assert hold.entered.wait(PATIENCE_S)
        return hold

    def leaks(self) -> list[str]:
        return [f"{self.boundaries.out} connections are out"] if self.boundaries.out else []

    def close(self) -> None:
        self._threads.shutdown()
        self.database.close()
        self.books.close()
        if self.rival is not None:
            self.rival.close()

    def _handler(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        key = environ.get("HTTP_IDEMPOTENCY_KEY", "none")
        payload = environ["wsgi.input"].read().decode()
        with self.boundaries.around_step("insert"):
            if self.shop.splits is not None:
                self.shop.splits.insert(key, payload)
            else:
                self._insert(environ[TRANSACTION].connection, key, payload)
        if (hold := self._holds.pop(key, None)) is not None:
            hold.entered.set()
            hold.may_end.wait(PATIENCE_S)
        status, headers, body = self.shop.decide(key, payload)
        start_response(f"{status} Said", headers)
        return [body]


class WsgiSqlite(WsgiHarness):
    """On a SQLite file."""

    def __init__(self, path: Path, *, alone: bool = False, **options: Any) -> None:
        database = SqliteDatabase(path, busy_timeout_s=0.5)
        rival = None if alone else WsgiSqlite(path, alone=True)
        super().__init__(database, insert_sqlite, open_books(path), rival, **options)


class WsgiPsycopg(WsgiHarness):
    """On Postgres by psycopg."""

    def __init__(self, dsn: str, *, through: str | None = None, alone: bool = False, **options: Any) -> None:
        rival = None if alone else WsgiPsycopg(dsn, alone=True)
        super().__init__(PsycopgDatabase(through or dsn), insert_psycopg, open_books(dsn), rival, **options)


def _asked(app: Application, route: str, key: str | None, payload: str) -> Attempt:
    begun_s = time.monotonic()
    reply: Reply | None
    try:
        reply = call(app, route, key, payload)
    except KeyboardInterrupt:
        reply = None
    return Attempt(key=str(key), payload=payload, reply=reply, begun_s=begun_s, ended_s=time.monotonic())


def call(app: Application, route: str, key: str | None, payload: str) -> Reply:
    """One request, as a server makes it."""
    started: list[tuple[str, list[tuple[str, str]]]] = []
    body = payload.encode()
    environ: Environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": route,
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    if key is not None:
        environ["HTTP_IDEMPOTENCY_KEY"] = key

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        started.append((status, headers))

    try:
        said = b"".join(app(environ, start_response))
    except Exception:
        return Reply(500)  # what every server makes of it
    status, headers = started[-1]
    encoded = tuple((name.lower().encode(), value.encode()) for name, value in headers)
    return Reply(int(status.split(" ")[0]), encoded, said)
