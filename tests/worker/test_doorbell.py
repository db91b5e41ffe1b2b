"""The doorbell of a SQLite file: heard by those of other processes at once, and harmless where it cannot be."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold
from onefold._worker import doorbell
from onefold._worker.doorbell import PLACES, Doorbell
from tests.worker.consuming import until
from tests.worker.test_listening import SELDOM, AnyOnefold, Desk, at_work, publish

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names without a file are Linux's")

_HOLD = """
import asyncio, sys
from onefold._worker.doorbell import Doorbell

async def hold():
    with Doorbell(sys.argv[1], "bell").listening(lambda: None, ""):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(hold())
"""


@pytest.fixture
def bell(tmp_path: Path) -> Doorbell:
    file = tmp_path / "app.db"
    file.touch()
    return Doorbell(str(file), "bell")


async def test_a_ring_is_heard_by_all_but_its_sender_and_by_no_other_channel(bell: Doorbell, tmp_path: Path) -> None:
    heard: list[str] = []
    other = tmp_path / "other.db"
    other.touch()
    with (
        bell.listening(lambda: heard.append("a"), "one"),
        bell.listening(lambda: heard.append("b"), "two"),
        Doorbell(str(tmp_path / "app.db"), "another").listening(lambda: heard.append("channel"), ""),
        Doorbell(str(other), "bell").listening(lambda: heard.append("file"), ""),
    ):
        bell.ring("one")
        await until(lambda: heard == ["b"])
        bell.ring("two")
        await until(lambda: heard == ["b", "a"])
    bell.ring("one")  # no one is there
    assert heard == ["b", "a"]


async def test_a_listener_that_does_not_come_to_it_holds_no_sender_up(bell: Doorbell) -> None:
    heard: list[int] = []
    with bell.listening(lambda: heard.append(1), ""):
        for _ in range(2000):
            bell.ring("one")
        await until(lambda: bool(heard))
    assert len(heard) == 1  # a burst is one look


async def test_rings_are_read_so_many_at_a_time_and_one_that_does_not_stop_holds_up_no_loop(
    bell: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "_RINGS_MAX", 2)
    heard: list[int] = []
    with bell.listening(lambda: heard.append(1), ""):
        for _ in range(4):
            bell.ring("one")
        await until(lambda: len(heard) == 2)


async def test_more_listeners_than_places_and_a_file_that_is_gone_are_no_error(bell: Doorbell, tmp_path: Path) -> None:
    heard: list[int] = []
    with ExitStack() as stack:
        for number in range(PLACES + 1):
            stack.enter_context(bell.listening(partial(heard.append, number), ""))
        bell.ring("one")
        await until(lambda: sorted(heard) == list(range(PLACES)))
    gone = Doorbell(str(tmp_path / "gone.db"), "bell")
    gone.ring("one")
    with gone.listening(lambda: None, ""):
        await asyncio.sleep(0)


async def test_the_place_of_a_process_that_was_killed_is_free(bell: Doorbell, tmp_path: Path) -> None:
    heard: list[int] = []
    holding = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _HOLD, str(tmp_path / "app.db"), stdout=asyncio.subprocess.PIPE
    )
    assert holding.stdout is not None
    assert await holding.stdout.readline() == b"held\n"
    with ExitStack() as stack:
        for _ in range(PLACES - 1):
            stack.enter_context(bell.listening(lambda: None, "one"))
        with bell.listening(lambda: heard.append(1), ""):  # the control: its place is taken
            bell.ring("one")
            await asyncio.sleep(0.05)
            assert heard == []
        holding.kill()
        await holding.wait()
        with bell.listening(lambda: heard.append(1), ""):
            bell.ring("one")
            await until(lambda: heard == [1])


def opened(kind: str, path: Path) -> AnyOnefold:
    match kind:
        case "AsyncOnefold":
            return AsyncOnefold(path, source="shop")
        case "Onefold":
            return Onefold(path, source="shop")
        case "engine":
            return Onefold(create_engine(f"sqlite:///{path}"), source="shop", broker="local")
        case _:
            return AsyncOnefold(create_async_engine(f"sqlite+aiosqlite:///{path}"), source="shop", broker="local")


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("kind", ["AsyncOnefold", "Onefold", "engine", "async engine"])
async def test_between_processes_on_sqlite_both_the_relay_and_the_consumer_are_woken(
    kind: str, sqlite_path: Path
) -> None:
    """Three applications that share nothing but the file."""
    Onefold(sqlite_path, source="shop").close()  # with its tables
    apps = [opened(kind, sqlite_path) for _ in range(3)]
    writer, relay, consumer = apps
    desk = Desk(consumer)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(at_work(consumer, consumer.consuming()))
        await until(lambda: bool(consumer._wakeups._signals))
        await stack.enter_async_context(at_work(relay, relay.relaying(**SELDOM)))
        for number in range(3):
            await publish(writer, number)
            await desk.see(*range(number + 1))
    for once in apps:
        if isinstance(once, AsyncOnefold):
            await once.close()
        else:
            once.close()
        engine = getattr(once._database, "_engine", None)
        if engine is not None and (disposed := engine.dispose()) is not None:
            await disposed
