"""The heartbeat: leases are renewed while calls last, and a work that was taken over is noticed."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from onefold._kernel import fork_and_loop
from onefold._kernel.effects import Acquire, Batch, Boundary, Discard
from onefold._kernel.ports import Connection
from onefold._kernel.runners import run
from onefold._steps.heartbeat import TaskHeartbeat, ThreadHeartbeat, _Beats, renew
from onefold._steps.model import Held
from onefold.db._drivers import async_database
from onefold.errors import StoreUnavailable
from tests.steps.places import ASK, ON_POSTGRES, Place
from tests.support.cancelled_drivers import CancelledFirst
from tests.support.patience import PATIENCE_S

#: Beats are a third of it apart.
SHORT_S = 0.6


def wait_until(reached: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        time.sleep(0.01)


async def wait_until_async(reached: Callable[[], Awaitable[bool]], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not await reached():
        assert time.monotonic() < limit, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


def claim(place: Place, digest: bytes = ASK.digest, lease_s: float = SHORT_S) -> Held:
    found = place.flow(place.works.claim(ASK._replace(digest=digest, lease_s=lease_s)))
    assert isinstance(found, Held)
    return found


def ends(place: Place) -> dict[bytes, Any]:
    column = "lease_ends_at" if place.is_postgres else "lease_ends_at_ms"
    return {bytes(digest): end for digest, end in place.rows(f"SELECT digest, {column} FROM onefold_work")}


def later(place: Place, before: dict[bytes, Any]) -> bool:
    """Whether every lease ends later than before."""
    return all(end > before[digest] for digest, end in ends(place).items())


def take_over(place: Place) -> None:
    place.change("UPDATE onefold_work SET fence = fence + 1")


@contextmanager
def beating(place: Place) -> Iterator[ThreadHeartbeat]:
    heartbeat = ThreadHeartbeat(place.database)
    try:
        yield heartbeat
    finally:
        heartbeat.close()


def threads() -> int:
    return sum(thread.name == "onefold-heartbeat" for thread in threading.enumerate())


def test_a_held_work_is_renewed_again_and_again(place: Place) -> None:
    with beating(place) as heartbeat:
        work = claim(place)
        heartbeat.hold(work)
        for _ in range(2):
            before = ends(place)
            wait_until(functools.partial(later, place, before), "a renewed lease")
        heartbeat.drop(work)
        assert not work.taken_over


def test_a_work_with_a_shorter_lease_is_renewed_in_its_own_time(place: Place) -> None:
    with beating(place) as heartbeat:
        heartbeat.hold(claim(place, b"long", lease_s=600.0))
        heartbeat.hold(claim(place, b"short"))
        before = ends(place)
        wait_until(lambda: ends(place)[b"short"] > before[b"short"], "a renewed lease")


def test_a_work_that_was_taken_over_is_marked_and_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with beating(place) as heartbeat:
        work, other = claim(place), claim(place, b"other")
        take_over(place)
        place.change("UPDATE onefold_work SET fence = fence - 1 WHERE digest <> (SELECT max(digest) FROM onefold_work)")
        heartbeat.hold(work)
        heartbeat.hold(other)
        wait_until(lambda: work.taken_over or other.taken_over, "a work that is marked")
        assert (work.taken_over, other.taken_over) == (False, True)
    assert f"POST /rides ({other.digest.hex()}) was taken over by another process" in caplog.text


def test_a_lease_of_another_process_is_not_renewed(place: Place) -> None:
    work = claim(place)
    take_over(place)
    before = ends(place)
    assert place.flow(renew(place.database.dialect, [work])) == [work]
    assert ends(place) == before


@ON_POSTGRES  # SQLite has one lock for all rows, which a phase and a renewal wait for
def test_a_row_that_is_locked_is_neither_waited_for_nor_taken_for_lost(place: Place) -> None:
    work, other = claim(place), claim(place, b"other")
    before = ends(place)
    locking = place.executor()

    async def lock() -> None:
        await Acquire()
        await Batch((Boundary.BEGIN, place.works.sql.lock(work)))

    async def let_go() -> None:
        await Discard()

    run(lock(), locking)
    try:
        assert place.flow(renew("postgres", [work, other])) == []
    finally:
        run(let_go(), locking)
    after = ends(place)
    assert after[work.digest] == before[work.digest]
    assert after[other.digest] > before[other.digest]


def test_any_number_of_works_is_renewed(place: Place) -> None:
    works = [claim(place, number.to_bytes(2, "big"), lease_s=float(60 + number % 2)) for number in range(150)]
    before = ends(place)
    lost = works[77]
    place.change(
        f"UPDATE onefold_work SET fence = 7 WHERE digest = {'decode' if place.is_postgres else ''}"
        + ("('004d', 'hex')" if place.is_postgres else "x'004d'")
    )
    assert place.flow(renew(place.database.dialect, works)) == [lost]
    after = ends(place)
    assert {digest for digest in after if after[digest] <= before[digest]} <= {lost.digest}


class FailsFirst:
    """A database that cannot be reached at first."""

    def __init__(self, place: Place) -> None:
        self.dialect = place.database.dialect
        self._database = place.database
        self.asked = 0

    def acquire(self) -> Connection[Any]:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailable("the database does not answer")
        return self._database.acquire()

    def close(self) -> None: ...


def test_a_beat_that_fails_is_tried_again_before_the_lease_ends(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    database = FailsFirst(place)
    heartbeat = ThreadHeartbeat(database)
    try:
        work = claim(place)
        before = ends(place)
        heartbeat.hold(work)
        wait_until(functools.partial(later, place, before), "a renewed lease")
        assert not work.taken_over
    finally:
        heartbeat.close()
    assert "the leases of 1 works could not be renewed: the database does not answer; tried again in 0.06 s" in (
        caplog.text
    )


def test_a_beat_that_failed_postpones_no_work_beyond_a_part_of_its_own_lease() -> None:
    long, short, new = (
        Held(digest, 1, "POST /rides", lease_s) for digest, lease_s in ((b"l", 300), (b"s", 2), (b"n", 3))
    )
    beats = _Beats()
    for work in (long, short):
        beats.hold(work, 0.0)
    picked = beats.works()
    beats.hold(new, 99.0)  # while the beat hangs
    beats.note_failed(picked, StoreUnavailable("down"), 100.0)
    assert beats.due() == 100.0  # of the new one, as it was
    beats.drop(new)
    assert beats.due() == 100.2
    beats.drop(short)
    assert beats.due() == 130.0


def test_the_thread_ends_with_the_last_work_and_the_next_one_starts_another(place: Place) -> None:
    heartbeat = ThreadHeartbeat(place.database)
    for _ in range(2):
        work = claim(place)
        heartbeat.hold(work)
        assert threads() == 1
        heartbeat.drop(work)
        wait_until(lambda: threads() == 0, "no heartbeat")
        place.flow(place.works.give_back(work))


def test_a_child_of_fork_renews_nothing_of_its_parent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    # None is due while this lasts. The database is not touched: a fork that is only played would mislead it, too.
    work, own = (Held(name * 16, 1, "import", lease_s=600.0) for name in (b"w", b"o"))
    with beating(place) as heartbeat:
        heartbeat.hold(work)
        parents = heartbeat._here
        with monkeypatch.context() as child:
            child.setattr(fork_and_loop, "getpid", lambda: os.getpid() + 1)
            heartbeat.drop(work)
            heartbeat.hold(own)
            assert heartbeat._here.beats.works() == [own]
            heartbeat.close()
        parents.close()


async def test_on_asyncio_a_held_work_is_renewed_and_one_that_was_taken_over_is_marked(place: Place) -> None:
    database = async_database(place.address)
    heartbeat = TaskHeartbeat(database)
    try:
        work = await asyncio.to_thread(claim, place)
        heartbeat.hold(work)
        for _ in range(2):
            before = await asyncio.to_thread(ends, place)

            async def renewed(before: dict[bytes, Any] = before) -> bool:
                return await asyncio.to_thread(later, place, before)

            await wait_until_async(renewed, "a renewed lease")
        await asyncio.to_thread(take_over, place)

        async def marked() -> bool:
            return work.taken_over

        await wait_until_async(marked, "a work that is marked")
    finally:
        await heartbeat.close()
        await database.close()


async def test_on_asyncio_a_beat_that_is_cancelled_elsewhere_is_tried_again(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    database = async_database(place.address)
    heartbeat = TaskHeartbeat(CancelledFirst(database))
    try:
        work = await asyncio.to_thread(claim, place)
        before = await asyncio.to_thread(ends, place)
        heartbeat.hold(work)

        async def renewed() -> bool:
            return await asyncio.to_thread(later, place, before)

        await wait_until_async(renewed, "a renewed lease")
    finally:
        await heartbeat.close()
        await database.close()
    assert "could not be renewed: something that was waited for was cancelled elsewhere" in caplog.text


def test_on_asyncio_each_loop_has_its_own_and_a_loop_that_ends_leaves_nothing_behind(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    database = async_database(place.address)
    heartbeat = TaskHeartbeat(database)
    work = claim(place)

    async def hold_and_go(drops: bool) -> None:
        heartbeat.hold(work)
        if drops:
            heartbeat.drop(work)
            assert heartbeat._loops.here()._timer is None

    with caplog.at_level(logging.DEBUG, "asyncio"):
        for drops in (False, True, False):
            asyncio.run(hold_and_go(drops))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    asyncio.run(database.close())


def test_a_request_deadline_does_not_bound_the_beats_of_other_works(place: Place) -> None:
    """The timer has a context of its own."""
    ambient: ContextVar[str] = ContextVar("ambient", default="none")
    seen: list[str] = []

    class Noting:
        dialect = place.database.dialect

        async def acquire(self) -> Any:
            seen.append(ambient.get())
            raise StoreUnavailable("enough")

        async def close(self) -> None: ...

    async def hold() -> None:
        heartbeat = TaskHeartbeat(Noting())
        ambient.set("of one request")
        heartbeat.hold(Held(b"d", 1, "POST /rides", 0.03))

        async def beaten() -> bool:
            return bool(seen)

        await wait_until_async(beaten, "a beat")
        await heartbeat.close()

    asyncio.run(hold())
    assert set(seen) == {"none"}
