"""The port of answer caches, and what users give to have one.

Invariant of the port: a cache is never the truth. What it gives back is a record that the database had committed when
it was written into the cache, or nothing that anything is decided by. It may forget at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from onefold._idempotency.model import Record
from onefold._kernel.telemetry.cache_events import LookOutcome, StoreOutcome

T = TypeVar("T")

#: How much longer an erased key may be replayed, and how late at most what another process stored is seen.
TTL_S: Final = 60.0
ANSWER_BYTES_MAX: Final = 256 * 1024


class CacheQuestion(Generic[T]):
    """A query to a cache server: a task awaits it, a thread calls `wait`. Only what runs the request knows which it
    is: `Onefold` may serve an ASGI application, on a loop that must not wait, and a thread of it may run a loop, in a
    notebook."""

    __slots__ = ("_begin", "wait")

    def __init__(self, wait: Callable[[], T], begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self.wait = wait
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, T]:
        return self._begin().__await__()


#: What a cache answers: the value itself, or the query for it.
Maybe: TypeAlias = CacheQuestion[T] | T


class Look(NamedTuple):
    """What a cache has under a digest."""

    outcome: LookOutcome
    record: Record | None = None
    """Of a hit. Whether it is of the same request is judged as the store judges its own."""


MISS: Final = Look("miss")
MARKED: Final = Look("in_flight")


class AnswerCache(Protocol):
    """The answers of one application. It raises nothing: what goes wrong is an outcome."""

    @property
    def bound(self) -> bool:
        """Whether it knows whose answers it has. One that others can reach is bound to a database first: two
        applications that share a server must not answer each other's retries."""
        ...

    def bind(self, database: bytes) -> None:
        """Keep to the answers of this database."""
        ...

    def look(self, digest: bytes, mark_s: float | None) -> Maybe[Look]:
        """What is stored under a digest. With `mark_s`, where there is nothing, the digest is marked as being in flight
        for so long: those who wait for it look here more often than in the database."""
        ...

    def store(self, record: Record, since: float, left_s: float) -> Maybe[StoreOutcome]:
        """Keep a record that is committed, in the place of a mark. It was seen in the database after `since`, by the
        monotonic clock of this process, and is kept there for `left_s` from then on, or longer."""
        ...

    def forget(self, digests: Sequence[bytes]) -> Maybe[bool]:
        """Drop what is stored under these digests, answers and marks. False: the server did not answer."""
        ...

    def close(self) -> None:
        """What threads have opened, and, without waiting for it, what was opened on the running loop."""
        ...

    async def aclose(self) -> None:
        """What was opened on the running loop."""
        ...


@runtime_checkable
class CacheSettings(Protocol):
    """What users give: a cache that each application opens for itself, so that no two share their answers."""

    def open_answers(self) -> AnswerCache: ...
