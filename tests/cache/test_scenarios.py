"""What every answer cache must do, in both colours: the same answers as without one, and fewer questions."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from onefold import Keyring
from onefold._idempotency.cache.cached_store import CachedStore
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import Ask, Claim, InFlight, Scope
from onefold._idempotency.stored_keys import erase
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.runners import run, run_async
from onefold.errors import StoreUnavailable
from tests.cache.conftest import MakeStage
from tests.cache.stage import Refused, Stage
from tests.support.patience import PATIENCE_S

REPLAYED = "idempotent-replayed"


def test_a_committed_answer_is_repeated_without_the_database(open_stage: MakeStage) -> None:
    stage = open_stage()
    first = stage.post("k1")
    assert (first.status_code, stage.claims, stage.looks, stage.stores) == (201, 1, ["miss"], ["stored"])
    for _ in range(3):
        again = stage.post("k1")
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers[REPLAYED] == "true"
    assert (stage.claims, stage.effects) == (0, 1)
    assert stage.looks == ["miss", "hit", "hit", "hit"]


def test_another_payload_under_the_key_is_refused_as_the_store_refuses_it(open_stage: MakeStage) -> None:
    stage = open_stage()
    stage.post("k1")
    by_cache = stage.post("k1", {"cents": 501})
    assert (by_cache.status_code, stage.claims, stage.effects) == (422, 1, 1)
    stage.run(lambda: stage.cache.forget([_digest(stage)]))
    by_store = stage.post("k1", {"cents": 501})
    assert (by_store.status_code, by_store.content) == (422, by_cache.content)
    # Not its bytes, but what they mean: as the store compares them.
    assert stage.post("k1", {"cents": 5e2}).status_code == 201 == stage.post("k1", {"cents": 500}).status_code
    assert stage.effects == 1


def test_no_principal_sees_the_answer_of_another(open_stage: MakeStage) -> None:
    stage = open_stage()
    mine, theirs = stage.post("k1"), stage.post("k1", account="globex")
    assert REPLAYED not in theirs.headers
    assert (mine.json()["account"], theirs.json()["account"], stage.effects) == ("acme", "globex", 2)
    assert stage.post("k1").content == mine.content
    assert stage.post("k1", account="globex").content == theirs.content
    assert stage.effects == 2


def test_who_may_not_see_an_answer_any_more_is_refused_before_the_cache_is_asked(open_stage: MakeStage) -> None:
    stage = open_stage()
    stage.post("k1")
    stage.allowed.clear()
    assert stage.post("k1").status_code == 403
    assert stage.looks == ["miss"]


def test_what_was_rolled_back_is_not_in_the_cache(open_stage: MakeStage) -> None:
    stage = open_stage()
    for body in ({"status": 503}, {"status": 429}, {"raises": True}):
        with suppress(Refused):
            assert stage.post("k1", body).status_code in (503, 429)
        assert stage.effects == 0
    assert stage.stores == []
    assert stage.post("k1").status_code == 201
    assert stage.effects == 1


def test_a_refusal_that_was_stored_is_repeated(open_stage: MakeStage) -> None:
    stage = open_stage()
    first, again = stage.post("k1", {"status": 402}), stage.post("k1", {"status": 402})
    assert (again.status_code, again.content, stage.claims, stage.effects) == (402, first.content, 1, 0)


def test_an_answer_of_another_process_is_found_in_the_database_and_kept(open_stage: MakeStage) -> None:
    first, second = open_stage(), open_stage()
    answer = first.post("k1")
    first.run(lambda: first.cache.forget([_digest(first)]))
    assert second.post("k1").content == second.post("k1").content == answer.content
    assert (second.claims, second.looks, second.stores) == (1, ["miss", "hit"], ["stored"])


def test_an_answer_is_forgotten_when_its_record_expires(open_stage: MakeStage) -> None:
    """Also one that was found in the database, whose time had begun long before."""
    stage = open_stage({"ttl_s": 3600.0})
    first = stage.post("k1")
    stage.run(lambda: stage.cache.forget([_digest(stage)]))
    _update(stage, f"expires_at_ms = {int(time.time() * 1000) + 120_000}")
    assert stage.post("k1").content == stage.post("k1").content == first.content
    _update(stage, "expires_at_ms = 1")
    assert stage.post("k1").content == first.content, "it is not asked before that"
    clocks: Any = stage.cache
    clocks._wall_ms = lambda: (time.time() + 121) * 1000
    assert stage.post("k1").content != first.content
    assert (stage.looks[1:4], stage.looks[4] in ("miss", "refused"), stage.effects) == (["miss", "hit", "hit"], True, 2)


def test_a_key_that_was_erased_runs_again_where_its_erasure_was_told(open_stage: MakeStage) -> None:
    stage = open_stage()
    first = stage.post("k1")
    _erase(stage)
    again = stage.post("k1")
    assert (REPLAYED in again.headers, again.content == first.content, stage.effects) == (False, False, 2)
    assert stage.post("k1").content == again.content


def test_a_key_that_was_erased_elsewhere_runs_again_after_its_time_at_the_latest(open_stage: MakeStage) -> None:
    one, other = open_stage(), open_stage()
    first = one.post("k1")
    assert other.post("k1").content == first.content
    _erase(one)
    clocks: Any = other.cache
    clocks._wall_ms = lambda: (time.time() + 61) * 1000
    again = other.post("k1")
    assert (REPLAYED in again.headers, again.content == first.content, one.effects) == (False, False, 2)


def test_while_the_database_is_away_what_is_cached_is_repeated_and_nothing_else_runs(
    open_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = open_stage()
    first = stage.post("k1")

    async def be_away(*given: object) -> None:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(LockedStore, "claim", be_away)
    assert stage.post("k1").content == first.content
    assert stage.post("k2").status_code == 503
    assert stage.post("k1", account="globex").status_code == 503


def test_a_route_can_stay_out_of_the_cache(open_stage: MakeStage) -> None:
    stage = open_stage()
    first, again = stage.post("k1", path="/uncached"), stage.post("k1", path="/uncached")
    assert (first.content, stage.claims, stage.looks, stage.stores) == (again.content, 2, [], [])


def test_an_answer_that_is_too_large_for_the_cache_is_repeated_by_the_database(open_stage: MakeStage) -> None:
    stage = open_stage({"answer_bytes_max": 300})
    first, again = stage.post("k1", {"padding": 1000}), stage.post("k1", {"padding": 1000})
    assert (first.content, stage.claims, stage.stores) == (again.content, 2, ["too_large"] * 2)


def test_a_sealed_answer_is_sealed_in_the_cache_too(open_stage: MakeStage) -> None:
    pytest.importorskip("cryptography")
    stage = open_stage(sealer=Keyring({"a": b"a" * 32}, write="a"))
    first = stage.post("k1", {"padding": 40})
    record = stage.run(lambda: stage.cache.look(_digest(stage), None)).record
    assert b"x" * 40 in first.content
    assert b"x" * 40 not in record.body
    assert stage.post("k1", {"padding": 40}).content == first.content


@pytest.mark.parametrize("wait_s", [0.0, 30.0])
def test_a_mark_that_a_dead_process_left_keeps_no_request_from_running(open_stage: MakeStage, wait_s: float) -> None:
    stage = open_stage(settings={"wait_s": wait_s})
    stage.post("k0")
    digest = _digest(stage, run=False)
    stage.run(lambda: stage.cache.look(digest, 3600.0))
    assert stage.run(lambda: stage.cache.look(digest, None)).outcome == "in_flight"
    assert stage.post("k1").status_code == 201
    assert (stage.looks[1:], stage.effects) == (["in_flight"], 2)
    assert stage.post("k1").headers[REPLAYED] == "true"


def test_a_mark_that_is_believed_is_found(open_stage: MakeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the one before."""
    real = CachedStore._find

    async def believe(self: CachedStore, ask: Ask) -> Claim | None:
        known = await real(self, ask)
        return InFlight() if known is None and stage.looks[-1] == "in_flight" else known

    monkeypatch.setattr(CachedStore, "_find", believe)
    stage = open_stage()
    stage.post("k0")
    stage.run(lambda: stage.cache.look(_digest(stage, run=False), 3600.0))
    assert (stage.post("k1").status_code, stage.effects) == (409, 1)


def test_a_request_in_flight_is_told_by_the_database_whatever_the_cache_says(open_stage: MakeStage) -> None:
    stage = open_stage()
    entered, go_on = threading.Event(), threading.Event()

    def hold(account: str) -> None:
        entered.set()
        go_on.wait(PATIENCE_S)

    stage.during = hold

    def let_go() -> None:
        entered.wait(PATIENCE_S)
        go_on.set()

    release = threading.Thread(target=let_go)
    release.start()
    statuses = sorted(answer.status_code for answer in stage.post_at_once([("k1", {"cents": 1}, "acme")] * 2))
    release.join()
    assert statuses in ([201, 201], [201, 409])
    assert stage.effects == 1


def test_those_who_wait_look_into_the_cache_and_get_the_answer(open_stage: MakeStage) -> None:
    stage = open_stage(settings={"wait_s": 60.0})
    waiting = threading.Event()
    stage.once._layer.cached.cache = cache = _Watched(stage.cache, waiting)
    stage.during = lambda account: assert_true(waiting.wait(PATIENCE_S))
    answers = stage.post_at_once([("k1", {"cents": 1}, "acme")] * 3)
    assert [answer.status_code for answer in answers] == [201] * 3
    assert len({answer.content for answer in answers}) == 1
    assert (stage.effects, sum(REPLAYED in answer.headers for answer in answers)) == (1, 2)
    assert cache.looks > stage.claims, "those who wait asked the database as often as the cache"


class _Watched:
    """A cache that says when others have waited at it for a while."""

    def __init__(self, cache: Any, waiting: threading.Event) -> None:
        self._cache, self._waiting, self.looks = cache, waiting, 0

    def look(self, digest: bytes, mark_s: float | None) -> Any:
        self.looks += 1
        if self.looks > 8:
            self._waiting.set()
        return self._cache.look(digest, mark_s)

    def __getattr__(self, name: str) -> object:
        return getattr(self._cache, name)


def assert_true(found: bool) -> None:
    assert found


def _digest(stage: Stage, *, run: bool = True) -> bytes:
    """Of the key k1 of acme, on /payments."""
    digest = Scope("acme", "POST /payments").digest("k1")
    assert not run or _rows(stage, digest) == 1
    return digest


def _rows(stage: Stage, digest: bytes) -> int:
    connection = sqlite3.connect(stage.database)
    try:
        return len(connection.execute("SELECT 1 FROM onefold_record WHERE digest = ?", (digest,)).fetchall())
    finally:
        connection.close()


def _update(stage: Stage, change: str) -> None:
    connection = sqlite3.connect(stage.database)
    with connection:
        connection.execute(f"UPDATE onefold_record SET {change}")
    connection.close()


def _erase(stage: Stage) -> None:
    """As the console does it."""
    digest, once = _digest(stage), stage.once

    async def with_tasks() -> None:
        await run_async(erase("sqlite", [digest], actor="ann", why="test"), TaskExecutor(once._database))
        await run_async(once._layer.cached.forget([digest]), TaskExecutor(once._database))

    if stage.colour == "asyncio":
        stage.run(with_tasks)
    else:
        run(erase("sqlite", [digest], actor="ann", why="test"), ThreadExecutor(once._database))
        run(once._layer.cached.forget([digest]), ThreadExecutor(once._database))
