"""The settings of a cache server, and its entries: what was written for a key opens for it, and nothing else does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Self, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._caches.redis_cache import RedisAnswers
from onefold._idempotency.cache.answer_cache import MISS, CacheQuestion, Look
from onefold._idempotency.cache.cache_entry import SKEW_MS, entry_key, read_entry, write_entry
from onefold._idempotency.model import Record
from onefold._kernel.executors import ThreadExecutor
from onefold.caches import RedisCache
from onefold.errors import ConfigurationError, ProgrammerError
from onefold.testing.servers import PrivateValkey
from tests.support.patience import PATIENCE_S

URL = "redis://:hunter2@127.0.0.1:6379/0"
SECRET = b"s" * 32
KEY = entry_key(SECRET, b"orders")
NOW_MS = 1_800_000_000_000

#: A busy machine is slow to make them up.
FEW = settings(max_examples=20)

RECORDS = st.builds(
    Record,
    digest=st.binary(min_size=16, max_size=16),
    fingerprint=st.binary(max_size=60),
    operation=st.text(max_size=40),
    version=st.integers(1, 2),
    status=st.integers(200, 499),
    headers=st.binary(max_size=60),
    body=st.none() | st.binary(max_size=200),
    left_ms=st.just(0),
)


@FEW
@given(RECORDS, st.integers(0, 59_999))
def test_an_entry_opens_as_the_record_it_was_written_from(record: Record, age_ms: int) -> None:
    entry = write_entry(record, KEY, NOW_MS, 60_000)
    assert read_entry(entry, record.digest, KEY, NOW_MS + age_ms) == record
    assert read_entry(entry, record.digest, KEY, NOW_MS - SKEW_MS) == record


@FEW
@given(RECORDS, st.data())
def test_an_entry_that_differs_in_a_bit_does_not_open(record: Record, data: st.DataObject) -> None:
    entry = bytearray(write_entry(record, KEY, NOW_MS, 60_000))
    entry[data.draw(st.integers(0, len(entry) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert read_entry(bytes(entry), record.digest, KEY, NOW_MS) is None
    assert read_entry(bytes(entry[: data.draw(st.integers(0, len(entry)))]), record.digest, KEY, NOW_MS) is None


@FEW
@given(RECORDS)
def test_an_entry_opens_for_no_other_key_database_secret_or_time(record: Record) -> None:
    entry = write_entry(record, KEY, NOW_MS, 60_000)
    other = bytes([record.digest[0] ^ 1]) + record.digest[1:]
    assert read_entry(entry, other, KEY, NOW_MS) is None
    assert read_entry(entry, record.digest, entry_key(SECRET, b"payments"), NOW_MS) is None
    assert read_entry(entry, record.digest, entry_key(b"t" * 32, b"orders"), NOW_MS) is None
    assert read_entry(entry, record.digest, KEY, NOW_MS + 60_000) is None
    assert read_entry(entry, record.digest, KEY, NOW_MS - SKEW_MS - 1) is None


@pytest.mark.parametrize(
    ("url", "written", "named"),
    [
        (URL, {}, "secret"),
        (URL, {"secret": b"short"}, "5 bytes.* must be 32 bytes or more"),
        (URL, {"secret": "s" * 32}, "a str"),
        (URL, {"secret": 32}, "is an int: it must be 32 bytes or more"),
        (URL, {"secret": SECRET, "namespace": ""}, "namespace=''.*one name for one database"),
        (URL, {"secret": SECRET, "namespace": None}, "namespace=None"),
        (URL, {"secret": SECRET, "ttl_s": 0}, "ttl_s"),
        (URL, {"secret": SECRET, "timeout_s": 60}, "timeout_s"),
        (URL, {"secret": SECRET, "prefix": "a b"}, "prefix"),
        (URL, {"secret": SECRET, "ttl": 5}, "ttl_s"),
        ("127.0.0.1:6379", {"secret": SECRET}, "redis://user:password@host:port/0"),
        ("http://127.0.0.1", {"secret": SECRET}, "redis://user:password@host:port/0"),
        ("redis://:p[w@127.0.0.1:x", {"secret": SECRET}, "percent-encoded"),
        (6379, {"secret": SECRET}, "redis://user:password@host:port/0"),
    ],
)
def test_wrong_settings_are_refused_where_they_are_written(url: Any, written: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as refused:
        RedisCache(url, **{"namespace": "orders", **written})
    assert "p[w" not in str(refused.value)


def test_a_database_without_a_name_is_refused() -> None:
    missing: dict[str, Any] = {"secret": SECRET}
    with pytest.raises(ConfigurationError, match="namespace"):
        RedisCache(URL, **missing)


def ask(answers: RedisAnswers) -> Look:
    """As a thread does."""
    found = answers.look(b"d" * 16, None)
    return found.wait() if isinstance(found, CacheQuestion) else found


class _Server:
    """Accepts, and answers each question as it is told to."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer, self._listening = answer, socket.create_server(("127.0.0.1", 0))
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.url = f"redis://127.0.0.1:{self._listening.getsockname()[1]}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *why: object) -> None:
        self.ended.set()
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while asked := connection.recv(4096).upper():
                if b"GETRANGE" in asked:
                    self._answer(connection)
                else:
                    connection.sendall(b"+OK\r\n" * max(1, asked.count(b"CLIENT") + asked.count(b"SELECT")))


def test_a_server_that_sends_a_byte_now_and_then_is_not_listened_to_for_longer_than_the_time_out() -> None:
    def trickle(connection: socket.socket) -> None:
        connection.sendall(b"$262144\r\n")
        while not server.ended.wait(0.02):
            connection.sendall(b"x")

    with _Server(trickle) as server, ThreadPoolExecutor(1) as pool:
        cache = RedisCache(server.url, secret=SECRET, namespace="orders", timeout_s=0.3)
        answers = cache.open_answers()
        answers.bind(b"")
        looking = pool.submit(ask, answers)
        try:
            assert looking.result(PATIENCE_S) == Look("failed")
        finally:
            server.ended.set()
        answers.close()


def test_to_connect_takes_no_longer_than_the_time_out_however_many_addresses_a_name_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of them answers: the queue of the listening socket is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as stack:
        address = full.getsockname()
        for _ in range(4):
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(address)
        found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address)] * 400
        monkeypatch.setattr(socket, "getaddrinfo", lambda *asked: found)
        cache = RedisCache(f"redis://cache:{address[1]}/0", secret=SECRET, namespace="orders", timeout_s=0.3)
        answers = cache.open_answers()
        answers.bind(b"")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(ask, answers).result(PATIENCE_S) == Look("failed")
        answers.close()


def test_a_task_that_asks_a_slow_server_holds_up_no_other() -> None:
    asked, answered = threading.Event(), threading.Event()

    def answer_late(connection: socket.socket) -> None:
        asked.set()
        answered.wait(PATIENCE_S)
        connection.sendall(b"$0\r\n\r\n")

    async def look(url: str) -> Look:
        answers = RedisCache(url, secret=SECRET, namespace="orders", timeout_s=5).open_answers()
        answers.bind(b"")
        question = answers.look(b"d" * 16, None)
        assert isinstance(question, CacheQuestion)
        looking = asyncio.ensure_future(question)
        assert await asyncio.to_thread(asked.wait, PATIENCE_S)
        answered.set()
        found = await looking
        await answers.aclose()
        return found

    with _Server(answer_late) as server:
        assert asyncio.run(look(server.url)) == MISS


def test_a_server_that_never_answers_is_left_alone_after_three_questions_however_far_apart() -> None:
    now = [0.0]
    with _Server(lambda connection: None) as server:
        cache = RedisCache(server.url, secret=SECRET, namespace="orders", timeout_s=0.05)
        answers = RedisAnswers(cache, monotonic=lambda: now[0])
        answers.bind(b"")
        outcomes = []
        for _ in range(4):
            outcomes.append(ask(answers).outcome)
            now[0] += 0.9
        assert outcomes == ["failed", "failed", "failed", "skipped"]
        answers.close()


def test_a_child_asks_whatever_its_parent_did_when_it_was_forked(valkey: PrivateValkey) -> None:
    """A server that loads the application and forks: a thread of the parent may hold the lock of the breaker."""
    now = [0.0]
    cache = RedisCache(valkey.url, secret=SECRET, namespace="orders", timeout_s=5)
    answers = RedisAnswers(cache, monotonic=lambda: now[0])
    answers.bind(b"")
    assert ask(answers) == MISS
    breaker = answers._breaker
    assert breaker.closed_permit is not None
    breaker.fail(breaker.closed_permit, now[0])
    now[0] += 60  # it is open, and is asked for a probe
    with breaker._lock:
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(PATIENCE_S))
            try:
                os._exit(0 if ask(answers) == MISS else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ask(answers) == MISS
    answers.close()


def test_neither_secret_nor_password_is_shown() -> None:
    shown = repr(RedisCache(URL, secret=SECRET, namespace="orders"))
    assert "hunter2" not in shown
    assert "sss" not in shown


def test_without_its_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'onefold\[redis\]'"):
        RedisCache(URL, secret=SECRET, namespace="orders")


def test_what_a_thread_cannot_await_is_named_without_its_arguments() -> None:
    """A cache is given records: an answer must not be in an error, which is logged."""

    async def store(answer: bytes) -> None:
        raise AssertionError("not awaited")

    executor: ThreadExecutor[Any] = ThreadExecutor(cast(Any, None))
    with pytest.raises(ProgrammerError, match=r"store is an async function") as refused:
        executor.call(partial(store, b"4111-1111"))
    assert "4111" not in str(refused.value)
