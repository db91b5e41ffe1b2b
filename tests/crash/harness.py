"""The shop behind each adapter and on each database, all asked in the same way: `harness.ask(route, key, payload)`.

A harness is plain synchronous code, also where its shop runs on asyncio: so one campaign serves both colours.
"""

from __future__ import annotations

import time
from typing import Protocol

from onefold._http.request_guard import RequestGuard
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.sql import sqlite
from onefold._idempotency.store import Store
from onefold._idempotency.unkeyed import UnkeyedStore
from onefold._kernel.plain_transaction import PlainTransaction
from tests.crash.shop import Books, Shop
from tests.support.crash import Act, Boundaries
from tests.support.invariants import FINAL, Attempt
from tests.support.patience import PATIENCE_S

#: How long a client goes on. Nothing here is locked for longer than a second.

#: How long a lost request may be waited for: on SQLite its locks are in this process, on Postgres in a server's.
LEASES_S = {"sqlite": 0.2, "postgres": 30.0}


class Harness(Protocol):
    """A shop that can be asked, struck and looked at."""

    books: Books
    boundaries: Boundaries
    shop: Shop
    lease_s: float
    dialect: str

    def ask(self, route: str, key: str | None, payload: str, *, act: Act | None = None) -> Attempt: ...
    def ask_elsewhere(self, route: str, key: str, payload: str) -> Attempt:
        """Through another application on the same database, as if it were another process."""
        ...

    def hold(self, route: str, key: str, payload: str) -> Hold: ...
    def leaks(self) -> list[str]: ...
    def close(self) -> None: ...


class Hold(Protocol):
    """A request that stays in its handler until it is let go, which may be done from inside a crossing."""

    def let_go(self) -> None: ...
    def ended(self) -> Attempt: ...


def insist(harness: Harness, route: str, key: str, payload: str, first: Attempt) -> list[Attempt]:
    """What a good client does: the same request with the same key, until it knows."""
    attempts = [first]
    deadline = time.monotonic() + PATIENCE_S
    while attempts[-1].verdict not in FINAL and time.monotonic() < deadline:
        attempts.append(harness.ask(route, key, payload))
        if attempts[-1].verdict not in FINAL:
            time.sleep(0.005)  # its backoff
    return attempts


def guard_for(dialect: str, store: Store | None = None) -> RequestGuard:
    if dialect == "postgres":
        return RequestGuard(store=store or LockedStore(), unkeyed=UnkeyedStore(PlainTransaction(lazily=False)))
    return RequestGuard(store=store or LockedStore(sqlite), unkeyed=UnkeyedStore(PlainTransaction(lazily=True)))
