"""Waking: a signal reaches its loop from any thread, and a burst of commits is one NOTIFY."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import asyncpg
import pytest

from onefold._kernel.wakeup_signals import OUTBOX_CHANNEL as CHANNEL
from onefold._kernel.wakeup_signals import Signal
from onefold._worker import wakeup
from onefold._worker.wakeup import Notifier, ThreadNotifier
from onefold.db.asyncpg import AsyncpgDatabase
from tests.support.patience import PATIENCE_S


async def test_a_signal_is_not_lost_between_looking_and_waiting() -> None:
    signal = Signal()
    signal.set()
    assert await signal.wait(PATIENCE_S)
    signal.clear()
    assert not await signal.wait(0.0)
    signal.set()
    assert await signal.wait(PATIENCE_S)


async def test_a_signal_from_another_thread_wakes_whoever_waits() -> None:
    signal = Signal()
    signal.clear()
    waiting = asyncio.create_task(signal.wait(PATIENCE_S))
    await asyncio.sleep(0)
    thread = threading.Thread(target=signal.set)
    thread.start()
    assert await waiting
    thread.join()


def test_a_signal_whose_loop_is_closed_harms_nobody() -> None:
    signal = Signal()

    async def wait() -> bool:
        return await signal.wait(0.0)

    assert not asyncio.run(wait())
    signal.set()


async def test_a_burst_of_commits_is_told_once(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeup, "NOTIFY_EVERY_S", 0.2)
    heard: list[object] = []
    arrived = asyncio.Event()

    def hear(*_: object) -> None:
        heard.append(1)
        arrived.set()

    listener = await asyncpg.connect(postgres_dsn)
    await listener.add_listener(CHANNEL, hear)
    database = AsyncpgDatabase(postgres_dsn)
    notifier = Notifier(database)
    for _ in range(50):
        notifier.notify()
    await asyncio.wait_for(arrived.wait(), PATIENCE_S)
    arrived.clear()
    for _ in range(50):
        notifier.notify()
    await asyncio.wait_for(arrived.wait(), PATIENCE_S)
    await notifier.close()
    assert len(heard) == 2
    await listener.close()
    await database.close()


def test_a_child_of_fork_hears_what_its_parent_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = ThreadNotifier(Failing())
    sender = notifier.sender
    assert notifier.sender == sender
    monkeypatch.setattr(wakeup, "getpid", lambda: 1)
    assert notifier.sender != sender


class Failing:
    """A database that fails in a way that nothing foresees, once."""

    dialect = "postgres"

    def __init__(self) -> None:
        self.asked = 0
        self.answered = threading.Event()

    def acquire(self) -> Any:
        self.asked += 1
        if self.asked > 1:
            self.answered.set()
        raise RuntimeError("unforeseen")

    def close(self) -> None: ...


def test_a_notifier_on_threads_goes_on_after_something_unforeseen(caplog: pytest.LogCaptureFixture) -> None:
    database = Failing()
    notifier = ThreadNotifier(database)
    notifier.notify()
    if (sending := notifier._sending) is not None:
        sending.join(PATIENCE_S)
    notifier.notify()
    assert database.answered.wait(PATIENCE_S)
    notifier.close()
    assert "unforeseen" in caplog.text


async def test_a_notifier_without_its_database_raises_and_logs_nothing_and_tries_again_with_the_next_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    database = AsyncpgDatabase("postgresql://127.0.0.1:1/none", acquire_timeout_s=PATIENCE_S)
    notifier = Notifier(database)
    for _ in range(2):
        notifier.notify()
        assert notifier._sending is not None
        await asyncio.wait_for(notifier._sending, PATIENCE_S)
    assert [record.getMessage() for record in caplog.records if record.name == "onefold.worker"] == []
    await notifier.close()
    await database.close()
