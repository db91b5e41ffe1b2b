"""A store behind an answer cache: the same answers, and fewer queries to the database.

Theory of operation. A claim looks into the cache first. A record there was committed, is of this very scope and key
(its digest), and is judged as the store judges its own: the same request is replayed, another payload is refused.
Anything else (nothing there, a value that is not believed, no answer) means that the database is queried, as without a
cache. What is written into the cache is a record whose COMMIT was answered, or one that the database gave, for as long
as the database keeps it and `ttl_s` at most.

A mark (in flight) decides nothing. It may be of a process that has died, whose key is free: a 409 would be a lie. The
database alone decides that a request is in flight. A request that waits (`wait_s`) after that answer looks into the
cache while the mark stands, and queries the database again every WATCH_S and when its wait ends. So a mark that was
left behind costs a waiting request WATCH_S at most, and no request its answer.

Failure windows. A crash between COMMIT and the cache costs a look at the database later. A process that is stopped
between the two stores what may have been erased meanwhile; its time counts from before COMMIT, so that an erased answer
is gone after `ttl_s` all the same.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from onefold._idempotency.cache.answer_cache import AnswerCache, CacheQuestion, CacheSettings, Look, Maybe
from onefold._idempotency.model import (
    SCHEMA_VERSION,
    Answer,
    Ask,
    Claim,
    Expired,
    InFlight,
    Mismatch,
    Record,
    Replay,
    Run,
    Status,
)
from onefold._idempotency.record_matching import judge_records
from onefold._idempotency.store import Store
from onefold._kernel.arguments import show
from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.effects import Call, Flow, Now, Statement
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.cache_events import CacheLooked, CacheStored
from onefold.errors import ConfigurationError, OnefoldError, StatementRefused

T = TypeVar("T")

#: How long a mark may keep a waiting request from asking the database again.
WATCH_S: Final = 0.5

#: The last look of a wait is the database's: so long before its end, and from then on.
_LAST_S: Final = 0.1

_FAILED: Final = Look("failed")

#: The identity of a database: when its tables were made, and its name. Two can have the same (containers whose files
#: have one path, made in one second), so that users name theirs, too (`RedisCache(namespace=...)`).
_IDENTITY: Final = {
    "postgres": qualified(
        "SELECT current_database()::text, extract(epoch FROM applied_at)::text FROM onefold_migration "
        "ORDER BY version LIMIT 1"
    ),
    "sqlite": """
        SELECT (SELECT file FROM pragma_database_list WHERE name = 'main'), applied_at
        FROM onefold_migration ORDER BY version LIMIT 1
    """,
}

_log = logging.getLogger("onefold.requests")


class CachedStore:
    """The store of one request."""

    __slots__ = (
        "_bind",
        "_cache",
        "_listener",
        "_marked",
        "_operation",
        "_queried_at",
        "_store",
        "_wait_s",
        "_waits_until",
    )  # fmt: skip

    def __init__(
        self,
        store: Store,
        cache: AnswerCache,
        bind: Callable[[], Flow[None]],
        operation: str,
        wait_s: float,
        listener: Listener | None,
    ) -> None:
        self._store = store
        self._cache = cache
        self._bind = bind
        self._operation = operation
        self._wait_s = wait_s
        self._listener = listener
        #: When the database was last queried, before it answered.
        self._queried_at = 0.0
        #: Until when the request waits, once the database has answered that the same is in flight.
        self._waits_until: float | None = None
        self._marked = False

    async def claim(self, ask: Ask) -> Claim:
        if self._waits_until is None or await Now() < self._watches_until(self._waits_until):
            claim = await self._find(ask)
            if claim is not None:
                return claim
        self._queried_at = await Now()
        claim = await self._store.claim(ask)
        if isinstance(claim, InFlight):
            if self._waits_until is None:
                self._waits_until = await Now() + self._wait_s
        elif isinstance(claim, Replay):
            if claim.record.digest == ask.digest:  # else it is found by an earlier name, which is not looked for here
                await self._keep(claim.record, self._queried_at, claim.record.left_ms / 1000)
        elif isinstance(claim, Mismatch | Expired):
            await self._unmark(ask)
        return claim

    async def settle(
        self, ask: Ask, run: Run, answer: Answer, *, keep_rows: bool, also: tuple[Statement, ...] = ()
    ) -> Claim | None:
        since = await Now()
        lost_to = await self._store.settle(ask, run, answer, keep_rows=keep_rows, also=also)
        if lost_to is None:
            record = Record(ask.digest, ask.fingerprint, ask.operation, SCHEMA_VERSION, *answer)
            # The database counts the retention from the beginning of the transaction, which the claim began.
            await self._keep(record, since, self._queried_at + ask.retention_s - since)
        else:
            await self._unmark(ask)
        return lost_to

    async def release(self, ask: Ask, run: Run, *, touched: bool = False) -> None:
        self._waits_until = None
        try:
            await self._store.release(ask, run, touched=touched)
        finally:
            await self._unmark(ask)

    async def status(self, digest: bytes) -> Status:
        return await self._store.status(digest)

    async def reap(self, limit: int) -> int:
        return await self._store.reap(limit)

    def _watches_until(self, waits_until: float) -> float:
        return min(self._queried_at + WATCH_S, waits_until - _LAST_S)

    async def _find(self, ask: Ask) -> Claim | None:
        """The claim by the cache. None: the database is queried."""
        if not self._cache.bound:
            await self._bind()
        mark_s = ask.lease_s if self._wait_s > 0 and self._waits_until is None else None
        look: Look = await self._query(functools.partial(self._cache.look, ask.digest, mark_s), _FAILED)
        self._marked |= mark_s is not None and look.outcome == "miss"
        outcome, claim = look.outcome, None
        if look.record is not None:
            claim = _judge(ask, look.record)
            outcome = "refused" if claim is None else "hit"
        emit(self._listener, CacheLooked(self._operation, outcome))
        if outcome == "in_flight" and self._waits_until is not None:
            # Late after a slow look, the wait may be over: the database has the last word.
            return InFlight() if await Now() < self._watches_until(self._waits_until) else None
        return claim

    async def _keep(self, record: Record, since: float, left_s: float) -> None:
        self._marked = False
        outcome = await self._query(functools.partial(self._cache.store, record, since, left_s), "failed")
        emit(self._listener, CacheStored(self._operation, outcome))

    async def _unmark(self, ask: Ask) -> None:
        if self._marked:
            self._marked = False
            await self._query(functools.partial(self._cache.forget, (ask.digest,)), False)

    async def _query(self, query: Callable[[], Any], otherwise: Any) -> Any:
        """Whatever a cache raises, the request goes on: it may be committed."""
        try:
            return await _answer(query)
        except Exception:
            _log.warning("the answer cache failed; the request goes on with the database", exc_info=True)
            return otherwise


async def _answer(query: Callable[[], Maybe[T]]) -> T:
    answer: Maybe[T] = await Call(query)  # on a loop the query itself was awaited there
    return answer.wait() if isinstance(answer, CacheQuestion) else answer


def _judge(ask: Ask, record: Record) -> Claim | None:
    """The claim by a record of the cache; None: the database is queried. It also raises what a record of its own would
    have refused."""
    if record.digest != ask.digest:
        return None
    try:
        return judge_records(ask, (record,))
    except OnefoldError:
        return None


async def read_database_id(dialect: str) -> bytes | None:
    """The identity of the database; None: its table of migrations is empty."""
    for row in await with_connection(lambda: fetch_rows(Statement(_IDENTITY[dialect]))):
        return "\0".join(map(str, row)).encode()
    return None


class CachedStores:
    """Makes the store of each request, for one application."""

    __slots__ = ("_asynchronous", "_dialect", "_listener", "_warned", "cache")

    def __init__(self, given: object, dialect: str, listener: Listener | None, *, asynchronous: bool) -> None:
        """`given`: by the user."""
        if isinstance(given, type) or not isinstance(given, CacheSettings):
            raise ConfigurationError(
                f"cache={show(given)} is not an answer cache: give one of onefold.caches, as in "
                "cache=onefold.caches.MemoryCache(), or None"
            )
        self.cache = given.open_answers()
        self._dialect = dialect
        self._listener = listener
        self._asynchronous = asynchronous
        self._warned = False

    def __call__(self, store: Store, operation: str, wait_s: float) -> CachedStore:
        return CachedStore(store, self.cache, self.bind, operation, wait_s, self._listener)

    async def bind(self) -> None:
        """Bind the cache to the database that its answers are of. Where that is not known yet, the next request tries
        again, and this one does without the cache."""
        try:
            database = await read_database_id(self._dialect)
        except StatementRefused as error:
            self._warn(f"the database does not let it read onefold_migration ({error})")
        except OnefoldError:  # the database is down, or not migrated: the request itself raises that
            return
        else:
            if database is None:
                self._warn("onefold_migration has no rows, though `onefold migrate` writes one for each version")
            else:
                self.cache.bind(database)

    def _warn(self, why: str) -> None:
        """Once: each request might log it."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "the answer cache is not used, because it does not know which database its answers are of: %s. Every "
                "request queries the database until it does; on Postgres the role of the application needs SELECT on "
                "onefold_migration (`onefold docs postgres`)",
                why,
            )

    def close(self) -> Any:
        """As its application is closed: it is awaited, or not."""
        return self.cache.aclose() if self._asynchronous else self.cache.close()

    async def forget(self, digests: Sequence[bytes]) -> None:
        """An operator has erased what is stored under these digests, and COMMIT was answered."""
        if not self.cache.bound:
            await self.bind()
        if not await _answer(functools.partial(self.cache.forget, digests)):
            _log.warning(
                "the answer of %s was erased, but could not be dropped from the answer cache: it may be replayed "
                "until its ttl_s is over",
                ", ".join(digest.hex() for digest in digests),
            )
