"""What was opened in one place is opened anew in each other, whichever thread comes first."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel import fork_and_loop
from onefold._kernel.fork_and_loop import PerLoop, Process
from onefold.db import sqlite
from onefold.db.sqlite import SqliteDatabase
from onefold.db.sqlite._file import Shared
from onefold.errors import ConfigurationError
from tests.support.patience import PATIENCE_S


def fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this is another process."""
    monkeypatch.setattr(fork_and_loop, "getpid", lambda: os.getpid() + 1)


def test_no_thread_of_a_child_goes_on_with_what_another_one_is_just_replacing(
    monkeypatch: pytest.MonkeyPatch, sqlite_path: Path
) -> None:
    database = SqliteDatabase(sqlite_path)
    inherited, used = database._here, list[object]()

    def look() -> None:
        used.append(database._here)

    second = threading.Thread(target=look)

    def make_slowly() -> Any:
        second.start()
        second.join(0.3)  # it must be waiting now; one that does not wait ends early, and has what it must not have
        return Shared()

    fork(monkeypatch)
    monkeypatch.setattr(sqlite, "Shared", make_slowly)
    look()
    second.join(PATIENCE_S)
    assert len(used) == 2
    assert inherited not in used
    assert used[0] is used[1]


def test_what_cannot_be_replaced_is_refused_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()

    def refuse() -> None:
        raise ConfigurationError("opened before the fork")

    assert not process.renew(refuse)
    fork(monkeypatch)
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            process.renew(refuse)
    assert process.renew(lambda: None)
    assert not process.renew(refuse)


def test_a_lock_that_a_thread_of_the_parent_holds_keeps_no_child_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(known=False)

    def replace() -> None:  # while it is held, this process is forked
        fork(monkeypatch)
        assert process.renew(lambda: None)

    assert process.renew(replace)


class AskedLoop(asyncio.SelectorEventLoop):
    """A loop that something happens on another thread for, when it is asked whether it is closed."""

    meanwhile: threading.Thread | None = None

    def is_closed(self) -> bool:
        thread, self.meanwhile = self.meanwhile, None
        if thread is not None:
            thread.start()
            thread.join(PATIENCE_S)
        return super().is_closed()


def test_loops_of_several_threads_come_and_go_at_the_same_time() -> None:
    made: list[object] = []
    dropped: list[object] = []

    def make() -> object:
        made.append(object())
        return made[-1]

    opened = PerLoop(make, dropped.append)

    async def here() -> object:
        return opened.here()

    first = AskedLoop()
    first.run_until_complete(here())
    first.close()
    other = asyncio.new_event_loop()
    first.meanwhile = threading.Thread(target=lambda: other.run_until_complete(here()))
    asyncio.run(here())
    other.close()
    assert len(made) == 3
    assert dropped == made[:1]
