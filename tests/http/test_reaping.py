"""Reaping by itself: with the lifespan of the application, and a word in the log where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.testclient import TestClient

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._http.reaper import reap_again_and_again
from onefold.errors import ConfigurationError
from onefold.telemetry import Event, Reaped
from tests.http.stages import calling
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

ONEFOLDS = (AsyncOnefold, Onefold)


class Heard:
    """Hears what is reaped."""

    def __init__(self) -> None:
        self.records = 0
        self.turn = threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Reaped):
            self.records += event.records
            self.turn.set()


def leave_expired(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        row = (b"x" * 16, time.time_ns() // 1_000_000 - 3_600_000)
        file.execute("INSERT INTO onefold_record VALUES (?, x'', 'POST /', 1, 200, x'', x'', ?)", row)


def reapers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "onefold-reaper"]


async def close(once: AsyncOnefold | Onefold) -> None:
    closed = once.close()
    if closed is not None:
        await closed


@pytest.mark.parametrize("onefold_type", ONEFOLDS)
@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_expired_records_go_while_an_application_with_its_own_lifespan_lives(
    onefold_type: type[AsyncOnefold] | type[Onefold], kind: Callable[..., Any], sqlite_path: Path
) -> None:
    heard, own = Heard(), list[tuple[str, int]]()

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        own.append(("up", len(reapers())))
        yield
        own.append(("down", len(reapers())))
        await close(once)

    once = onefold_type(sqlite_path, principal=single_principal, listener=heard, reap_every_s=0.1)
    leave_expired(sqlite_path)
    app = kind(lifespan=lifespan)
    once.install(app)
    with TestClient(app):
        assert heard.turn.wait(PATIENCE_S)
    assert heard.records == 1
    assert own == [("up", 0), ("down", 0)]  # neither before the application's own start, nor during its end


@pytest.mark.parametrize(("settings", "found"), [({}, 1), ({"reap_every_s": None}, 0)])
def test_it_is_on_by_default_and_one_setting_turns_it_off(
    settings: dict[str, Any], found: int, sqlite_path: Path
) -> None:
    once = AsyncOnefold(sqlite_path, principal=single_principal, **settings)
    app = FastAPI()
    once.install(app)

    @app.get("/reapers")
    async def count() -> int:
        return len(reapers())

    @app.get("/close")
    async def end() -> None:
        await once.close()

    with TestClient(app) as client:
        assert client.get("/reapers").json() == found
    with TestClient(app) as client:  # each lifespan has its own
        assert client.get("/reapers").json() == found
        client.get("/close")


def test_a_failure_is_logged_and_the_next_turn_succeeds(sqlite_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard, failed = Heard(), threading.Event()
    once = Onefold(sqlite_path, principal=single_principal, listener=heard, reap_every_s=0.1)
    with contextlib.closing(sqlite3.connect(sqlite_path, isolation_level=None)) as file:
        file.execute("ALTER TABLE onefold_record RENAME TO elsewhere")
        app = FastAPI()
        once.install(app)
        handler = _Telling(failed)
        logging.getLogger("onefold.requests").addHandler(handler)
        try:
            with TestClient(app):
                assert failed.wait(PATIENCE_S)
                file.execute("ALTER TABLE elsewhere RENAME TO onefold_record")
                assert heard.turn.wait(PATIENCE_S)
        finally:
            logging.getLogger("onefold.requests").removeHandler(handler)
    once.close()
    assert any("expired records could not be deleted" in record.message for record in caplog.records)


async def test_a_turn_that_is_cancelled_elsewhere_is_logged_and_does_not_end_the_reaping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As where a future of the driver's is cancelled: the task itself goes on, and still ends when it is cancelled."""
    turns, reaped = 0, asyncio.Event()

    async def reap() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            raise asyncio.CancelledError
        reaped.set()

    reaping = asyncio.create_task(reap_again_and_again(reap, 0.01))
    async with asyncio.timeout(PATIENCE_S):
        await reaped.wait()
    assert "expired records could not be deleted: something that was waited for was cancelled elsewhere" in caplog.text
    reaping.cancel()
    await asyncio.wait([reaping])
    assert reaping.cancelled()


class _Telling(logging.Handler):
    def __init__(self, told: threading.Event) -> None:
        super().__init__(logging.WARNING)
        self._told = told

    def emit(self, record: logging.LogRecord) -> None:
        self._told.set()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if "deletes expired records" in record.message]
    assert all((record.name, record.levelname) == ("onefold.requests", "INFO") for record in found)
    return [record.message for record in found]


@pytest.mark.parametrize(("settings", "times"), [({}, 1), ({"reap_every_s": None}, 0)])
async def test_an_application_without_a_lifespan_is_told_once(
    settings: dict[str, Any], times: int, sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    once = AsyncOnefold(sqlite_path, principal=single_principal, **settings)
    app = FastAPI()
    once.install(app)
    assert said(caplog) == []
    async with calling(app) as client:
        await client.get("/")
        await client.get("/")
    await once.close()
    assert len(said(caplog)) == times
    assert all("`onefold reap`" in line and "reap_every_s=None" in line for line in said(caplog))


@pytest.mark.parametrize("reaping", [False, True])
def test_a_wsgi_application_is_told_once_unless_it_reaps_itself(
    reaping: bool, sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    once = Onefold(sqlite_path, principal=single_principal)
    app = Flask("shop")
    once.install(app)
    with once.reaping() if reaping else contextlib.nullcontext():
        app.test_client().get("/")
        app.test_client().get("/")
    once.close()
    assert len(said(caplog)) == (0 if reaping else 1)


def test_with_a_lifespan_nothing_is_said(sqlite_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onefold")
    once = Onefold(sqlite_path, principal=single_principal)
    app = FastAPI()
    once.install(app)
    with TestClient(app) as client:
        client.get("/")
    once.close()
    assert said(caplog) == []


_LEFT = """
import asyncio
from fastapi import FastAPI
from onefold import AsyncOnefold, single_principal

app = FastAPI()
AsyncOnefold("shop.db", principal=single_principal).install(app)

async def main():
    said = []
    async def receive():
        return {"type": "lifespan.startup"} if not said else await asyncio.Event().wait()
    async def send(message):
        said.append(message["type"])
        started.set()
    started = asyncio.Event()
    task = asyncio.create_task(app({"type": "lifespan", "asgi": {}}, receive, send))
    await started.wait()
    print(said[0], len([t for t in asyncio.all_tasks() if t.get_name() == "onefold-reaper"]))

asyncio.run(main())
"""


def test_a_server_that_ends_without_a_shutdown_is_not_kept_alive(tmp_path: Path) -> None:
    ran = fork_server().run("-c", _LEFT, cwd=tmp_path, within_s=PATIENCE_S)
    assert (ran.stdout, ran.returncode) == ("lifespan.startup.complete 1\n", 0), ran.stderr


@pytest.mark.parametrize("given", [0, -1, "300", True, 1e9, float("nan")])
def test_a_wrong_interval_is_refused_where_it_is_written(given: Any, sqlite_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="reap_every_s="):
        Onefold(sqlite_path, reap_every_s=given)
