"""Hooks of a consumer's plain `def` that do not return: nothing can stop their threads, and nothing waits for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Message, Onefold, Transaction
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

_HANGING_HOOKS = """
import asyncio, sys, threading
from onefold import Message, Onefold, Transaction

once = Onefold(sys.argv[1], source="shop")
seen, all_seen = [], threading.Event()

@once.consumer("mail", topic="order", timeout_s=0.1, concurrency=1)
def handle(message: Message, tx: Transaction) -> None:
    def hang() -> None:
        seen.append(message.id)
        if len(seen) == 40:
            all_seen.set()
        threading.Event().wait()

    tx.after_commit(hang)

with once.transaction() as tx:
    for _ in range(40):
        tx.publish("order", {})
with once.relaying(), once.consuming():
    assert all_seen.wait(60)
once.close()
print("ends")
"""


def test_hooks_on_threads_that_hang_keep_neither_later_ones_from_being_called_nor_the_process_from_ending(
    sqlite_path: Path,
) -> None:
    """More of them than a loop has threads: those would be gone, and be waited for at the end."""
    ended = subprocess.run(
        [sys.executable, "-c", _HANGING_HOOKS, str(sqlite_path)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ended.stdout, ended.returncode) == ("ends\n", 0)
    assert "a hook after COMMIT failed (handle.<locals>.hang)" in ended.stderr


async def test_hooks_on_threads_are_bounded_and_one_that_is_not_called_is_told(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold._worker.handler_calls.HOOKS_BEHIND_MAX", 2)
    handled, called, go = list[int](), list[int](), threading.Event()
    once = Onefold(sqlite_path, source="shop")

    @once.consumer("mail", topic="order", timeout_s=0.1, concurrency=1)
    def handle(message: Message, tx: Transaction[Any]) -> None:
        number = message.json()["number"]
        handled.append(number)

        def hang() -> None:
            called.append(number)
            go.wait(PATIENCE_S)

        tx.after_commit(hang)

    def publish(*numbers: int) -> None:
        with once.transaction() as tx:
            for number in numbers:
                _ = tx.publish("order", {"number": number}, key="one")

    with once.relaying(), once.consuming():
        await asyncio.to_thread(publish, *range(5))
        await until(
            lambda: caplog.text.count("hooks of consumer 'mail' or more are on threads that do not return") == 2
        )
        assert (handled, called) == ([0, 1, 2, 3, 4], [0, 1, 2])
        go.set()
        await asyncio.to_thread(publish, 5)
        await until(lambda: 5 in called)
    once.close()


async def test_a_hook_that_finds_nothing_leaves_no_thread_behind(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A StopIteration is an error as another one: no future takes it, and such hooks counted as hanging."""
    monkeypatch.setattr("onefold._worker.handler_calls.HOOKS_BEHIND_MAX", 1)
    once = AsyncOnefold(sqlite_path, source="shop")
    await once.migrate()

    @once.consumer("mail", topic="order", concurrency=1)
    def handle(message: Message, tx: Transaction[Any]) -> None:
        tx.after_commit(lambda: next(iter([])))

    async with once.transaction() as tx:
        for number in range(6):
            _ = tx.publish("order", {"number": number})
    async with once.relaying(), once.consuming():
        await until(lambda: caplog.text.count("raised StopIteration") >= 6)
    await once.close()
    assert "are on threads that do not return" not in caplog.text
