"""Answers on a server of Redis or Valkey, for all processes of an application.

Never the truth: a server that is flushed, killed, full, hung, cut off or lying costs time, and nothing else. What it
gives back is opened only if this application wrote it for this key (`_idempotency/cache/cache_entry.py`). Each question
has a short time-out; after a few failures a breaker leaves the server alone, and looks now and then whether it is back.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from onefold._caches.question_deadline import QuestionDeadline
from onefold._idempotency.cache.answer_cache import ANSWER_BYTES_MAX, MARKED, MISS, TTL_S, CacheQuestion, Look, Maybe
from onefold._idempotency.cache.cache_entry import entry_key, entry_name, read_entry, write_entry
from onefold._idempotency.model import Record
from onefold._kernel.arguments import name_type, named_settings, show
from onefold._kernel.clock import milliseconds, monotonic_s, wall_ms
from onefold._kernel.executors import in_background, runs_a_loop
from onefold._kernel.extras import missing_extra
from onefold._kernel.fork_and_loop import PerLoop, watch_forks
from onefold._kernel.redaction import redact
from onefold._kernel.telemetry.cache_events import StoreOutcome
from onefold._policy.breaker import Breaker, BreakerConfig, Permit, Refused
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

T = TypeVar("T")

#: How many failures in a row open the breaker, however far apart: a process with few requests has few in any period.
_FAILURES_MAX: Final = 3

#: Of a cache, so it opens early and looks again soon: what it saves is worth less than what a hung server costs. It
#: gets the last failure of `_FAILURES_MAX`, and opens.
_BREAKER: Final = BreakerConfig(
    failure_share=1.0,
    calls_least=1,
    open_s=1.0,
    open_max_s=8.0,
    probes=1,
    proofs=1,
    probe_s=10.0,
)

#: The content of a mark, which is never read as an answer.
_MARK: Final = b"in flight"

#: What an entry has besides headers and body: lengths, times, fingerprint and operation.
_REST_BYTES_MAX: Final = 4096

_SCHEMES: Final = ("redis", "rediss", "unix")
_SECRET_BYTES_MIN: Final = 32
_NAME: Final = re.compile(r"[\w.:{}-]{1,100}", re.ASCII)
_LOG_EVERY_S: Final = 60.0

_log = logging.getLogger("onefold.requests")


@named_settings
@dataclass(frozen=True, slots=True)
class RedisCache:
    """Completed answers on a server of Redis or Valkey, which all processes of an application share:
    `AsyncOnefold(..., cache=RedisCache("redis://127.0.0.1:6379/0", secret=secret, namespace="orders"))`.

    `secret` (32 bytes or more, the same in all processes) is what the application knows its own entries by.
    `namespace` is the name of the database: one name for one database, the same in all processes that use it. `ttl_s`
    is how long an answer is repeated without asking the database again. The server has `timeout_s` to answer; then the
    database is asked. At most `connections_max` connections per process and loop. `url` is redis://, rediss:// or
    unix://; keys on the server begin with `prefix`; an answer of more than `answer_bytes_max` bytes is not kept.
    """

    url: str = field(repr=False)
    _: KW_ONLY
    secret: bytes = field(repr=False)
    namespace: str
    prefix: str = "onefold-answer"
    ttl_s: float = TTL_S
    answer_bytes_max: int = ANSWER_BYTES_MAX
    timeout_s: float = 0.05
    connections_max: int = 32

    def __post_init__(self) -> None:
        try:
            import_module("redis")
        except ModuleNotFoundError as error:
            raise missing_extra(error, "redis") from None
        _check_url(self.url)
        given: object = self.secret
        if not isinstance(given, bytes) or len(given) < _SECRET_BYTES_MIN:
            what = f"{len(given)} bytes" if isinstance(given, bytes) else name_type(given)
            raise ConfigurationError(
                f"RedisCache(secret=...) is {what}: it must be {_SECRET_BYTES_MIN} bytes or more (os.urandom(32), kept "
                "where your other secrets are, the same in all processes): an answer on the server is believed by it"
            )
        name: object = self.namespace
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"RedisCache(namespace={show(name)}): must be 1 to 100 letters, digits and . : {{ }} _ -, one name "
                "for one database, the same in all processes that use it: two databases with one name may answer each "
                "other's retries"
            )
        if not _NAME.fullmatch(str(self.prefix)):
            raise ConfigurationError(f"RedisCache(prefix={self.prefix!r}): must be letters, digits and . : {{ }} _ -")
        require("ttl_s", self.ttl_s, least=0.001, most=86_400)
        require("answer_bytes_max", self.answer_bytes_max, least=0, most=1 << 28, whole=True)
        require("timeout_s", self.timeout_s, least=0.001, most=5)
        require("connections_max", self.connections_max, least=1, most=10_000, whole=True)

    def open_answers(self) -> RedisAnswers:
        """For onefold: the cache itself."""
        return RedisAnswers(self)


def _check_url(url: object) -> None:
    """The parser's error is neither quoted nor chained: it repeats what it could not read, which may be a password."""
    try:
        readable = isinstance(url, str) and urlsplit(url).port != 0 and urlsplit(url).scheme in _SCHEMES
    except ValueError:
        readable = False
    if not readable:
        shown = redact(url) if isinstance(url, str) else url
        raise ConfigurationError(
            f"RedisCache({shown!r}): the address is written redis://user:password@host:port/0, rediss:// or unix://, "
            "with special characters of the password percent-encoded"
        ) from None


class RedisAnswers:
    """The answers of one application on one server. Shared by its threads and its loops."""

    def __init__(
        self,
        settings: RedisCache,
        *,
        monotonic: Callable[[], float] = monotonic_s,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._wall_ms = wall
        self._key: bytes | None = None
        self._breaker = Breaker(lambda: 1.0, _BREAKER)
        #: In a row. Threads may miscount by one: it costs a question more or less.
        self._failures = 0
        #: Until when the question of this thread has to be answered.
        self._deadline = QuestionDeadline(monotonic_s)
        self._log_after = 0.0
        self._on_loops: PerLoop[Any] = PerLoop(self._connect_on_loop, lambda client: None)
        self._on_threads: Any = None
        #: Of the parent, where this process was forked: its connections are neither used nor closed.
        self._inherited: Any = None
        watch_forks(self)

    def note_fork(self) -> None:
        """Whatever a thread of the parent held is held by none here."""
        self._breaker = Breaker(lambda: 1.0, _BREAKER)
        self._inherited, self._on_threads = (self._inherited, self._on_threads), None

    @property
    def bound(self) -> bool:
        """Whether it is known whose answers these are. Until then nothing is looked for and nothing stored."""
        return self._key is not None

    def bind(self, database: bytes) -> None:
        # The name stands first: what a database tells of itself (path, time) another one may tell, too. It has no NUL.
        self._key = entry_key(self._settings.secret, self._settings.namespace.encode() + b"\0" + database)

    def look(self, digest: bytes, mark_s: float | None) -> Maybe[Look]:
        name = self._name(digest)
        # Whatever is planted there, no more than an entry can have is read.
        bytes_max = self._settings.answer_bytes_max + _REST_BYTES_MAX

        def send(client: Any) -> Any:
            if mark_s is None:
                return client.getrange(name, 0, bytes_max)
            pipe = client.pipeline(transaction=False)
            pipe.set(name, _MARK, nx=True, px=max(1, milliseconds(mark_s)))
            pipe.getrange(name, 0, bytes_max)
            return pipe.execute(raise_on_error=False)

        return self._query(send, lambda found: self._read(digest, found), Look("failed"), Look("skipped"))

    def store(self, record: Record, since: float, left_s: float) -> Maybe[StoreOutcome]:
        if len(record.headers) + len(record.body or b"") > self._settings.answer_bytes_max:
            return self._drop_mark(record.digest)
        gone_s = max(0.0, self._monotonic() - since)
        lives_s = min(left_s, self._settings.ttl_s)
        left_ms = milliseconds(lives_s - gone_s) if lives_s > gone_s else 0
        if left_ms < 1 or self._key is None:
            return "too_late" if left_ms < 1 else "skipped"
        entry = write_entry(record, self._key, self._wall_ms() - milliseconds(gone_s), milliseconds(lives_s))
        name = self._name(record.digest)
        stored: StoreOutcome = "stored"
        return self._query(lambda client: client.set(name, entry, px=left_ms), lambda _: stored, "failed", "skipped")

    def forget(self, digests: Sequence[bytes]) -> Maybe[bool]:
        names = [self._name(digest) for digest in digests]
        return self._query(lambda client: client.delete(*names), lambda _: True, False, False)

    def close(self) -> None:
        client, self._on_threads = self._on_threads, None
        if client is not None:
            with suppress(Exception):
                client.close()
        if runs_a_loop():
            in_background(self.aclose())

    async def aclose(self) -> None:
        for client in self._on_loops.take():
            with suppress(Exception):
                await client.aclose()

    def _name(self, digest: bytes) -> str:
        return f"{self._settings.prefix}:{entry_name(digest, self._key or b'')}"

    def _drop_mark(self, digest: bytes) -> Maybe[StoreOutcome]:
        large: StoreOutcome = "too_large"
        return self._query(lambda client: client.delete(self._name(digest)), lambda _: large, "failed", "skipped")

    # --- one query ------------------------------------------------------------------------------------------

    def _query(self, send: Callable[[Any], Any], read: Callable[[Any], T], failed: T, skipped: T) -> Maybe[T]:
        """Query the server, unless the breaker is open."""
        permit = self._breaker.admit(self._monotonic())
        if isinstance(permit, Refused) or self._key is None:
            if isinstance(permit, Permit):
                self._breaker.release_without_verdict(permit)
            return skipped
        return CacheQuestion(
            lambda: self._wait(send, read, failed, permit), lambda: self._await(send, read, failed, permit)
        )

    def _wait(self, send: Callable[[Any], Any], read: Callable[[Any], T], failed: T, permit: Permit) -> T:
        try:
            self._deadline.set(self._settings.timeout_s)
            found = send(self._on_this_thread())
        except Exception as error:
            return self._fail(permit, error, failed)
        except BaseException:  # interrupted: nothing is known about the server
            self._breaker.release_without_verdict(permit)
            raise
        return self._succeed(permit, read, found)

    async def _await(self, send: Callable[[Any], Any], read: Callable[[Any], T], failed: T, permit: Permit) -> T:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                found = await send(self._on_loops.here())
        except Exception as error:
            return self._fail(permit, error, failed)
        except BaseException:  # cancelled: nothing is known about the server
            self._breaker.release_without_verdict(permit)
            raise
        return self._succeed(permit, read, found)

    def _succeed(self, permit: Permit, read: Callable[[Any], T], found: Any) -> T:
        self._note_answer(permit)
        return read(found)

    def _note_answer(self, permit: Permit) -> None:
        self._failures = 0
        if permit is not self._breaker.closed_permit:
            self._breaker.succeed(permit, self._monotonic())

    def _note_failure(self, permit: Permit) -> None:
        self._failures += 1
        if permit is not self._breaker.closed_permit or self._failures >= _FAILURES_MAX:
            self._breaker.fail(permit, self._monotonic())

    def _fail(self, permit: Permit, error: Exception, failed: T) -> T:
        from redis.exceptions import ResponseError

        if isinstance(error, ResponseError):  # it answers: it is full, say
            self._note_answer(permit)
        else:
            self._note_failure(permit)
        self._log("does not answer" if not str(error) else f"failed ({type(error).__name__}: {error})")
        return failed

    def _read(self, digest: bytes, found: Any) -> Look:
        if isinstance(found, list):  # what became of the mark, and what is there now
            was_marked, found = found
            if was_marked is True:
                return MISS
        if found == b"":
            return MISS
        if isinstance(found, Exception):
            return Look("failed")
        if found == _MARK:
            return MARKED
        assert self._key is not None
        record = read_entry(found, digest, self._key, self._wall_ms()) if isinstance(found, bytes) else None
        if record is None:
            self._log("has an entry that this application did not write for this key, or that is past its time")
            return Look("refused")
        return Look("hit", record)

    def _log(self, what: str) -> None:
        """Log once a minute at most: each request might log it. The text of an error contains no part of an answer."""
        if self._monotonic() >= self._log_after:
            self._log_after = self._monotonic() + _LOG_EVERY_S
            _log.warning("the answer cache at %s %s; the database is read", redact(self._settings.url), what[:300])

    # --- clients --------------------------------------------------------------------------------------------

    def _on_this_thread(self) -> Any:
        client = self._on_threads
        if client is None:
            from redis import BlockingConnectionPool, Redis

            pool = BlockingConnectionPool.from_url(**self._pool())
            pool.connection_class = self._deadline.limit_connections(pool.connection_class)
            client = self._on_threads = Redis.from_pool(pool)
        return client

    def _connect_on_loop(self) -> Any:
        from redis.asyncio import BlockingConnectionPool, Redis

        return Redis.from_pool(BlockingConnectionPool.from_url(**self._pool()))

    def _pool(self) -> dict[str, Any]:
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        timeout_s = self._settings.timeout_s
        return {
            "url": self._settings.url, "max_connections": self._settings.connections_max, "timeout": timeout_s,
            "socket_timeout": timeout_s, "socket_connect_timeout": timeout_s, "socket_keepalive": True,
            "retry": Retry(NoBackoff(), 0), "protocol": 2, "decode_responses": False,
        }  # fmt: skip
