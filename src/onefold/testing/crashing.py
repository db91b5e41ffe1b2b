"""A crash of a request at its COMMIT, inside a test's own process: it ends there, and its connection with it.

with crash_at_commit(once, "after"):
    client.post("/orders", json=..., headers=...)  # is committed, and never answered
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias, get_args

from onefold._app import AsyncOnefold, Onefold
from onefold._kernel.effects import BatchItem, Boundary, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold.errors import ConfigurationError
from onefold.testing._given import require_once

__all__ = ["CommitEdge", "ProcessCrashed", "crash_at_commit"]

CommitEdge: TypeAlias = Literal["before", "after"]

_EDGES: Final[tuple[str, ...]] = get_args(CommitEdge)

#: Blocks of other threads wait. One inside of another would wait for itself, and is refused.
_one_at_a_time = threading.RLock()
_open_blocks: list[Crash] = []


class ProcessCrashed(Exception):
    """Ends a request as a crash of its process would: nothing after it is done, and nothing is answered."""


@contextmanager
def crash_at_commit(once: Onefold | AsyncOnefold, edge: CommitEdge) -> Iterator[None]:
    """In this block the first request with a key that comes to its COMMIT crashes: `before` it, so that nothing of it
    stays, or `after` it, so that all of it stays and its client is not answered. `ProcessCrashed` is raised there; a
    server makes an answer with status 500 of it, a test client may raise it. A block without such a request is an
    AssertionError: its test has not tested a crash."""
    with crashing(once, edge) as crash:
        yield
    if not crash.happened:
        raise AssertionError(
            "no request with a key of this Onefold has come to its COMMIT in this block, or that failed: none crashed"
        )


@contextmanager
def crashing(once: Onefold | AsyncOnefold, edge: CommitEdge) -> Iterator[Crash]:
    """The same for a caller that asks the crash itself whether it has `happened`."""
    require_once(once)
    if edge not in _EDGES:
        raise ConfigurationError(f"edge={edge!r} of a crash must be one of {', '.join(map(repr, _EDGES))}")
    crash = Crash(once._database, edge)
    with _one_at_a_time:
        if _open_blocks:
            raise ConfigurationError("a block in which a request crashes is inside of another one: end that first")
        _open_blocks.append(crash)
        of_threads, of_tasks = ThreadExecutor.batch, TaskExecutor.batch

        def batch(self: ThreadExecutor[Any], items: Sequence[BatchItem]) -> int:
            with crash.around(self._database, items):
                return of_threads(self, items)

        async def batch_of_task(self: TaskExecutor[Any], items: Sequence[BatchItem]) -> int:
            with crash.around(self._database, items):
                return await of_tasks(self, items)

        _replace(batch, batch_of_task)
        try:
            yield crash
        finally:
            _replace(of_threads, of_tasks)
            _open_blocks.remove(crash)


def _replace(batch: Any, batch_of_task: Any) -> None:
    for executor, verb in ((ThreadExecutor, batch), (TaskExecutor, batch_of_task)):
        setattr(executor, ThreadExecutor.batch.__name__, verb)


class Crash:
    """The crash of the first request that settles."""

    def __init__(self, database: object, edge: CommitEdge) -> None:
        self._database = database
        self._edge = edge
        #: Taken by the request that it is for, one of many threads, and never released.
        self._taken = threading.Lock()
        self.happened = False

    @contextmanager
    def around(self, database: object, items: Sequence[BatchItem]) -> Iterator[None]:
        due = database is self._database and _settles(items) and self._taken.acquire(blocking=False)
        if due and self._edge == "before":
            raise self._strike("before COMMIT")
        yield
        if due:
            raise self._strike("after COMMIT, before the answer")

    def _strike(self, when: str) -> ProcessCrashed:
        self.happened = True
        return ProcessCrashed(f"the process crashed {when}")


def _settles(items: Sequence[BatchItem]) -> bool:
    """Whether a request commits here: its record and COMMIT. Relays and consumers beside it go on."""
    return Boundary.COMMIT in items and any(
        isinstance(each, Statement) and "INSERT INTO onefold_record" in each.sql for each in items
    )
