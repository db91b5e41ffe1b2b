"""Answers in the memory of this process: the least recently used go first, and those past their time at once.

An answer that is committed does not change until it expires or an operator erases it. The first is known when it is
stored; of the second another process learns when `ttl_s` is over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final, NamedTuple

from onefold._idempotency.cache.answer_cache import ANSWER_BYTES_MAX, MARKED, MISS, TTL_S, Look
from onefold._idempotency.model import Record
from onefold._kernel.arguments import named_settings
from onefold._kernel.clock import monotonic_s, wall_ms
from onefold._kernel.fork_and_loop import watch_forks
from onefold._kernel.telemetry.cache_events import StoreOutcome
from onefold._policy.ranges import require

#: What an entry takes besides the bytes of its answer: the objects, and their places in the table.
ENTRY_BYTES: Final = 700

#: So many of the oldest are looked at with each new one: what has expired is dropped, also if it is never looked up.
_SWEPT: Final = 2


@named_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCache:
    """Completed answers in the memory of each process: `AsyncOnefold(..., cache=MemoryCache())`.

    At most `entries_max` of them, and `bytes_max` bytes; an answer of more than `answer_bytes_max` is not kept. `ttl_s`
    is how long an answer is repeated without asking the database again: for so long at most a key that was erased in
    another process is still replayed by this one.
    """

    entries_max: int = 10_000
    bytes_max: int = 64 * 1024 * 1024
    answer_bytes_max: int = ANSWER_BYTES_MAX
    ttl_s: float = TTL_S

    def __post_init__(self) -> None:
        require("entries_max", self.entries_max, least=1, most=10_000_000, whole=True)
        require("bytes_max", self.bytes_max, least=10_000, most=1 << 40, whole=True)
        require("answer_bytes_max", self.answer_bytes_max, least=0, most=self.bytes_max - ENTRY_BYTES, whole=True)
        require("ttl_s", self.ttl_s, least=0.001, most=86_400)

    def open_answers(self) -> MemoryAnswers:
        """For onefold: the cache itself."""
        return MemoryAnswers(self)


class _Entry(NamedTuple):
    record: Record | None
    """None: in flight."""
    until: float
    until_ms: float
    """The same by the other clock: the monotonic one stands still while a machine is suspended."""
    size: int


class MemoryAnswers:
    """The answers of one application in one process. Shared by its threads."""

    __slots__ = ("__weakref__", "_bytes", "_entries", "_lock", "_monotonic", "_settings", "_wall_ms")

    def __init__(
        self,
        settings: MemoryCache,
        *,
        monotonic: Callable[[], float] = monotonic_s,
        wall: Callable[[], int] = wall_ms,
    ) -> None:
        self._settings = settings
        self._monotonic = monotonic
        self._wall_ms = wall
        self._lock = Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._bytes = 0
        watch_forks(self)

    def note_fork(self) -> None:
        """Its answers are as true here; a thread that had the lock is not."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bound(self) -> bool:
        """No other application reaches it."""
        return True

    def bind(self, database: bytes) -> None:
        """One application has it: there is nothing to distinguish."""

    @property
    def size(self) -> int:
        """Bytes, about."""
        return self._bytes

    def look(self, digest: bytes, mark_s: float | None) -> Look:
        with self._lock:
            entry = self._entries.get(digest)
            if entry is not None and self._is_over(entry):
                self._drop(digest)
                entry = None
            if entry is None:
                if mark_s is not None:
                    self._put(digest, None, self._monotonic() + mark_s, 0)
                return MISS
            self._entries.move_to_end(digest)
            return MARKED if entry.record is None else Look("hit", entry.record)

    def store(self, record: Record, since: float, left_s: float) -> StoreOutcome:
        size = len(record.headers) + len(record.body or b"")
        with self._lock:
            for digest in [digest for digest, _ in zip(self._entries, range(_SWEPT), strict=False)]:
                if self._is_over(self._entries[digest]):
                    self._drop(digest)
            self._drop(record.digest)  # also a mark, of an answer that is too large
            if size > self._settings.answer_bytes_max:
                return "too_large"
            until = since + min(left_s, self._settings.ttl_s)
            if until <= self._monotonic():
                return "too_late"
            self._put(record.digest, record, until, size)
            return "stored"

    def forget(self, digests: Sequence[bytes]) -> bool:
        with self._lock:
            for digest in digests:
                self._drop(digest)
        return True

    def close(self) -> None:
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    async def aclose(self) -> None:
        self.close()

    def _is_over(self, entry: _Entry) -> bool:
        return self._monotonic() >= entry.until or self._wall_ms() >= entry.until_ms

    def _put(self, digest: bytes, record: Record | None, until: float, size: int) -> None:
        entry = _Entry(record, until, self._wall_ms() + (until - self._monotonic()) * 1000, size + ENTRY_BYTES)
        self._entries[digest] = entry
        self._bytes += entry.size
        while self._bytes > self._settings.bytes_max or len(self._entries) > self._settings.entries_max:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.size

    def _drop(self, digest: bytes) -> None:
        dropped = self._entries.pop(digest, None)
        if dropped is not None:
            self._bytes -= dropped.size
