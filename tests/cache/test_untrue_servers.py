"""A server before the database that lies, forgets, hangs, is full or dies: nothing changes but the time it takes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from uuid import uuid4

import pytest
from redis import Redis

from onefold._caches import redis_cache
from onefold._idempotency.cache.cache_entry import entry_key, read_entry, write_entry
from onefold._idempotency.cache.cached_store import CachedStore
from onefold._idempotency.model import Record, Scope
from onefold._kernel.clock import wall_ms
from onefold.caches import RedisCache
from onefold.telemetry import CacheLooked, Event
from onefold.testing.servers import PrivateValkey
from tests.cache.conftest import SECRET
from tests.cache.stage import Colour, Stage
from tests.support.patience import PATIENCE_S

Plant: TypeAlias = Callable[[bytes], bytes]

LIE: Final = b'{"payment": 0, "account": "mallory"}'
DIGEST: Final = Scope("acme", "POST /payments").digest("k1")


@pytest.fixture(scope="module")
def mortal_valkey() -> Iterator[PrivateValkey]:
    with PrivateValkey() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return f"test-{uuid4().hex}"


@contextmanager
def opened(
    colour: Colour,
    database: Path,
    server: PrivateValkey,
    prefix: str,
    *,
    timeout_s: float = 5.0,
    namespace: str = "orders",
    **how: Any,
) -> Iterator[Stage]:
    cache = RedisCache(server.url, secret=SECRET, namespace=namespace, prefix=prefix, timeout_s=timeout_s)
    with Stage(colour, database, cache, **how) as stage:
        yield stage


def planted(record: Record, secret: bytes = SECRET, database: bytes = b"") -> bytes:
    return write_entry(record, entry_key(secret, database), wall_ms(), 60_000)


def lie_of(entry: bytes, digest: bytes = DIGEST) -> Record:
    """The entry's record with another answer, as one who knows all but the secret writes it."""
    found = Record(digest, b"", "POST /payments", 2, 201, b"\x00content-type:application/json", b"\x00" + LIE)
    return found._replace(fingerprint=entry[61:94])


LIES: Final[dict[str, Plant]] = {
    "a text": lambda entry: b"paid",
    "more than an entry can have": lambda entry: entry + bytes(1_000_000),
    "noise": lambda entry: random.Random(7).randbytes(len(entry)),
    "the entry, cut short": lambda entry: entry[:-3],
    "the entry with another body": lambda entry: entry[:-36] + LIE[:36],
    "the entry with a longer life": lambda entry: entry[:41] + b"\xff\xff\xff\xff" + entry[45:],
    "an entry that another secret made": lambda entry: planted(lie_of(entry), b"t" * 32),
    "an entry of another database": lambda entry: planted(lie_of(entry), database=b"other"),
    "an entry without a signature": lambda entry: bytes(32) + planted(lie_of(entry))[32:],
}


@pytest.mark.parametrize("lie", LIES)
def test_what_the_application_did_not_write_is_not_believed(
    lie: str, colour: Colour, sqlite_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    with opened(colour, sqlite_path, valkey, prefix) as stage, Redis.from_url(valkey.url) as server:
        first = stage.post("k1")
        name = name_of(stage)
        server.set(name, LIES[lie](server.get(name)))
        again = stage.post("k1")
        assert (again.status_code, again.content, stage.effects) == (201, first.content, 1)
        assert stage.looks == ["miss", "refused"]
        assert stage.post("k1").content == first.content
        assert stage.looks[-1] == "hit", "what the database said took its place"


def test_an_entry_of_another_key_or_principal_is_not_believed(
    colour: Colour, sqlite_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    """Genuine, and moved."""
    with opened(colour, sqlite_path, valkey, prefix) as stage, Redis.from_url(valkey.url) as server:
        mine, theirs = stage.post("k1"), stage.post("k1", account="globex")
        [other] = [name for name in server.scan_iter(f"{prefix}:*") if name.decode() != name_of(stage)]
        server.copy(other, name_of(stage), replace=True)
        assert stage.post("k1").content == mine.content != theirs.content
        assert stage.looks[-1] == "refused"


def test_an_entry_that_the_server_should_have_forgotten_is_not_believed(
    colour: Colour, sqlite_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    """Its clock stands still, or it was restored: what is in the entry says when it ends."""
    with opened(colour, sqlite_path, valkey, prefix) as stage, Redis.from_url(valkey.url) as server:
        first = stage.post("k1")
        server.persist(name_of(stage))
        clocks: Any = stage.cache
        for off_s in (61, -3):  # also one of a host whose clock is ahead
            clocks._wall_ms = lambda off_s=off_s: wall_ms() + off_s * 1000
            assert stage.post("k1").content == first.content
            assert stage.looks[-1] == "refused"
            clocks._wall_ms = wall_ms


def test_a_key_that_holds_something_else_altogether_costs_a_look_at_the_database(
    colour: Colour, sqlite_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    with opened(colour, sqlite_path, valkey, prefix) as stage, Redis.from_url(valkey.url) as server:
        first = stage.post("k1")
        server.delete(name_of(stage))
        server.lpush(name_of(stage), b"a list")
        assert stage.post("k1").content == first.content
        assert stage.post("k1").content == first.content
        assert stage.looks == ["miss", "failed", "hit"]


def test_two_applications_on_two_databases_do_not_answer_each_others_retries(
    colour: Colour, sqlite_path: Path, tmp_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    """The same server, secret, routes, principal and key: a gateway may pass one key on to both."""
    with (
        opened(colour, sqlite_path, valkey, prefix) as one,
        opened(colour, tmp_path / "other.db", valkey, prefix) as other,
    ):
        mine, theirs = one.post("k1"), other.post("k1")
        assert "idempotent-replayed" not in theirs.headers
        assert (one.effects, other.effects) == (1, 1)
        assert one.post("k1").content == mine.content
        assert other.post("k1").content == theirs.content


@pytest.mark.parametrize("namespace", ["orders", "payments"])
def test_two_databases_that_cannot_be_told_apart_are_told_apart_by_their_names(
    namespace: str, colour: Colour, sqlite_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    """Two containers: one path, and made in the same second. With one name for both (the control) they cannot be."""
    with opened(colour, sqlite_path, valkey, prefix) as one:
        mine = one.post("k1")
    with sqlite3.connect(sqlite_path) as connection:  # as the other's database is
        connection.execute("DELETE FROM onefold_record")
        connection.execute("DELETE FROM payment")
    connection.close()
    with opened(colour, sqlite_path, valkey, prefix, namespace=namespace) as other:
        theirs = other.post("k1")
        mixed_up = namespace == "orders"
        assert ("idempotent-replayed" in theirs.headers, theirs.content == mine.content) == (mixed_up, mixed_up)
        assert other.effects == (0 if mixed_up else 1)


def test_a_database_that_tells_nothing_of_itself_is_asked_each_time(
    colour: Colour, sqlite_path: Path, valkey: PrivateValkey, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(colour, sqlite_path, valkey, prefix) as stage:
        assert stage.post("k1", path="/uncached").status_code == 201
        with sqlite3.connect(sqlite_path) as connection:
            connection.execute("DELETE FROM onefold_migration")
        connection.close()
        first = stage.post("k1")
        assert (first.status_code, stage.post("k1").content) == (201, first.content)
        assert (stage.looks, stage.effects) == (["skipped"] * 2, 2)
        assert caplog.text.count("onefold_migration has no rows") == 1


def test_onefold_uses_its_cache_on_a_thread_that_runs_a_loop(
    sqlite_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    """A notebook, or a test."""
    with opened("threads", sqlite_path, valkey, prefix) as stage:

        async def post() -> bytes:
            return stage.post_here("k1").content

        first = asyncio.run(post())
        assert asyncio.run(post()) == first
        assert (stage.looks, stage.stores) == (["miss", "hit"], ["stored"])


def test_a_server_that_is_full_is_read_and_not_written(
    colour: Colour, sqlite_path: Path, mortal_valkey: PrivateValkey, prefix: str
) -> None:
    with (
        opened(colour, sqlite_path, mortal_valkey, prefix, settings={"wait_s": 1.0}) as stage,
        Redis.from_url(mortal_valkey.url) as server,
    ):
        first = stage.post("k1")
        server.config_set("maxmemory", "1")
        server.config_set("maxmemory-policy", "noeviction")
        try:
            assert stage.post("k1").content == first.content
            other = stage.post("k2")
            assert stage.post("k2").content == other.content
            assert (stage.looks, stage.stores) == (["miss", "hit", "miss", "miss"], ["stored", "failed", "failed"])
            assert stage.effects == 2
        finally:
            server.config_set("maxmemory", "0")


def test_a_server_that_hangs_is_waited_for_a_few_times_and_then_left_alone(
    colour: Colour, sqlite_path: Path, mortal_valkey: PrivateValkey, prefix: str
) -> None:
    with opened(colour, sqlite_path, mortal_valkey, prefix, timeout_s=0.15) as stage:
        first = stage.post("k1")
        until_hit(stage, first.content)
        stage.events.clear()
        now, clocks = _clocks(stage)._monotonic(), _clocks(stage)
        clocks._monotonic = lambda: now  # the breaker's: an open one stays open
        pid = mortal_valkey.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(12):
                assert stage.post("k1").content == first.content
                assert stage.post(f"new-{number}").status_code == 201
            assert (stage.effects, stage.looks[-1], stage.stores[-1]) == (13, "skipped", "skipped")
            asked = [outcome for outcome in (*stage.looks, *stage.stores) if outcome != "skipped"]
            assert 3 <= len(asked) <= 6, asked
        finally:
            os.kill(pid, signal.SIGCONT)
        clocks._monotonic = lambda: now + 60
        until_hit(stage, first.content)


def test_a_server_that_is_killed_is_used_again_when_it_is_back(
    colour: Colour, sqlite_path: Path, mortal_valkey: PrivateValkey, prefix: str
) -> None:
    with opened(colour, sqlite_path, mortal_valkey, prefix) as stage:
        first = stage.post("k1")
        mortal_valkey.kill()
        for number in range(6):
            assert stage.post("k1").content == first.content
            assert stage.post(f"new-{number}").status_code == 201
        assert (stage.effects, stage.looks[-1]) == (7, "skipped")
        mortal_valkey.restart()
        later = _clocks(stage)._monotonic() + 60
        _clocks(stage)._monotonic = lambda: later
        until_hit(stage, first.content)


def until_hit(stage: Stage, content: bytes) -> None:
    """On a busy machine a server that is there may be late, too."""
    for _ in range(200):
        assert stage.post("k1").content == content
        if stage.looks[-1] == "hit":
            return
        later = _clocks(stage)._monotonic() + 10
        _clocks(stage)._monotonic = lambda later=later: later
    raise AssertionError(f"not used again: {stage.looks[-20:]}")


def _clocks(stage: Stage) -> Any:
    return stage.cache


def name_of(stage: Stage, digest: bytes = DIGEST) -> str:
    cache: Any = stage.cache
    return str(cache._name(digest)) if cache.bound else "none"


def test_who_waits_for_a_process_that_dies_runs_whatever_its_mark_says(
    sqlite_path: Path, valkey: PrivateValkey, prefix: str
) -> None:
    """Its mark stands for the lease, a minute; its key is free at once."""
    with opened("threads", sqlite_path, valkey, prefix, settings={"wait_s": 50.0}) as stage:
        entered, waited = threading.Event(), threading.Event()

        def hold_and_die(account: str) -> None:
            stage.during = lambda account: None
            entered.set()
            assert waited.wait(PATIENCE_S)
            raise Died

        def hear(event: Event) -> None:
            if isinstance(event, CacheLooked) and [*stage.looks].count("in_flight") >= 2:
                waited.set()  # the second has been told by the database, and watches the mark

        stage.during = hold_and_die
        stage.heard = hear
        with ThreadPoolExecutor(2) as pool:
            dies = pool.submit(stage.post, "k1")
            assert entered.wait(PATIENCE_S)
            waits = pool.submit(stage.post, "k1")
            with pytest.raises(Died):
                dies.result(PATIENCE_S)
            answer = waits.result(PATIENCE_S)
        assert (answer.status_code, "idempotent-replayed" in answer.headers, stage.effects) == (201, False, 1)


# --- any order of all that -------------------------------------------------------------------------------------


class Died(BaseException):
    """The process of a request ends: nothing of it goes on."""


def play(seed: int, stages: list[Stage], server: Any, prefix: str) -> list[str]:
    """Requests of several processes, deaths, flushes and lies in a random order; what was wrong with the answers."""
    chance = random.Random(seed)
    first: dict[tuple[str, str], tuple[object, bytes]] = {}
    wrong: list[str] = []
    for turn in range(60):
        stage, key = chance.choice(stages), f"k{chance.randrange(3)}"
        account, body = chance.choice(["acme", "globex"]), chance.choice([{"cents": 1}, {"cents": 1}, {"cents": 2}])
        match chance.randrange(10):
            case 0:
                server.flushall()
            case 1:
                for digest in [Scope(account, "POST /payments").digest(f"k{number}") for number in range(3)]:
                    name = name_of(stages[0], digest)
                    server.set(name, planted(lie_of(server.get(name) or b"", digest), b"t" * 32))
            case 2:
                names = list(server.scan_iter(f"{prefix}:*"))
                if len(names) > 1:
                    one, other = chance.sample(names, 2)
                    server.copy(one, other, replace=True)
            case 3 if (account, key) not in first:
                stage.during = _die
                with suppress(Died):
                    stage.post(key, body, account=account)
                stage.during = lambda account: None
            case _:
                answer = stage.post(key, body, account=account)
                known = first.get((account, key))
                if known is None and answer.status_code == 201:
                    first[account, key] = body, answer.content
                expected = (
                    (201, answer.content) if known is None else (201, known[1]) if known[0] == body else (422, None)
                )
                if answer.status_code != expected[0] or expected[1] not in (None, answer.content):
                    wrong.append(f"turn {turn}: {account} {key} {body} got {answer.status_code} {answer.content!r}")
    if stages[0].effects != len(first):
        wrong.append(f"{stages[0].effects} effects of {len(first)} requests")
    return wrong


def _die(account: str) -> None:
    raise Died


@contextmanager
def process_pair(database: Path, valkey: PrivateValkey, prefix: str) -> Iterator[tuple[list[Stage], Any]]:
    open_one = partial(opened, "threads", database, valkey, prefix, settings={"wait_s": 2.0})
    with open_one() as one, open_one() as other, Redis.from_url(valkey.url) as server:
        yield [one, other], server


@pytest.mark.parametrize("seed", range(2))
def test_in_any_order_of_requests_deaths_flushes_and_lies_the_answers_are_those_of_the_database(
    seed: int, sqlite_path: Path, mortal_valkey: PrivateValkey, prefix: str
) -> None:
    with process_pair(sqlite_path, mortal_valkey, prefix) as (stages, server):
        assert play(seed, stages, server, prefix) == []
        assert {"hit", "miss", "refused"} <= {outcome for stage in stages for outcome in stage.looks}


def test_a_cache_that_is_believed_is_found(
    sqlite_path: Path, mortal_valkey: PrivateValkey, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: entries are opened whoever wrote them."""
    real = read_entry

    def believe(entry: bytes, digest: bytes, key: bytes, now_ms: int) -> Record | None:
        return real(entry, digest, key, now_ms) or real(entry, digest, entry_key(b"t" * 32, b""), now_ms)

    monkeypatch.setattr(redis_cache, "read_entry", believe)
    with process_pair(sqlite_path, mortal_valkey, prefix) as (stages, server):
        assert any(play(seed, stages, server, prefix) for seed in range(8))


def test_an_answer_that_was_stored_before_its_commit_is_found(
    sqlite_path: Path, mortal_valkey: PrivateValkey, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: requests whose process dies after the cache was told, and before COMMIT."""
    real, dies = CachedStore.settle, iter([True, True, True, False] * 100)

    async def tell_too_early(self: CachedStore, ask: Any, run: Any, answer: Any, **how: Any) -> Any:
        await self._keep(Record(ask.digest, ask.fingerprint, ask.operation, 2, *answer), self._queried_at, 60.0)
        if next(dies):
            raise Died
        return await real(self, ask, run, answer, **how)

    monkeypatch.setattr(CachedStore, "settle", tell_too_early)
    monkeypatch.setattr(Stage, "post", _without_the_dead(Stage.post))
    with process_pair(sqlite_path, mortal_valkey, prefix) as (stages, server):
        assert "effects of" in play(0, stages, server, prefix)[-1]


def _without_the_dead(post: Any) -> Any:
    """A client tries again where its server has died."""

    def persist(*args: Any, **named: Any) -> Any:
        while True:
            with suppress(Died):
                return post(*args, **named)

    return persist
