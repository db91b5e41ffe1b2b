"""What the tests of the command line share: `onefold` in processes of its own, and an application to run it on."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from onefold import Onefold, _cli
from onefold._cli.commands import assemble
from tests.support.fork_server import Child, ForkServer, fork_server
from tests.support.patience import PATIENCE_S

APPLICATIONS = Path(__file__).with_name("applications")
MAIN = ("-c", "from onefold._cli import main; main()")


def surroundings(environment: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")}
    return kept | environment


def import_all() -> None:
    """In the fork server: every command, and what typer and rich import when they first have something to say."""
    for module in pkgutil.walk_packages(_cli.__path__, "onefold._cli."):
        importlib.import_module(module.name)
    importlib.import_module("onefold.sagas.dbos")
    with contextlib.redirect_stdout(io.StringIO()):
        for words in (["--version"], ["dlq", "--help"]):
            assemble(words)(words, standalone_mode=False)


def command_line() -> ForkServer:
    return fork_server(
        "import asyncpg, psycopg_pool, onefold.db.sqlite; from tests.cli.commands import import_all; import_all()"
    )


def onefold(
    *words: str, cwd: Path | None = None, given: str = "", without: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. `without`: in an interpreter of its own, as if these modules were not installed."""
    # The limits are for what hangs; a busy machine takes its time.
    if without is None:
        return command_line().run(
            *MAIN, *words, cwd=cwd, environment=surroundings(environment), given=given, within_s=300
        )
    missing = f"import sys; sys.modules.update(dict.fromkeys({without.split()!r}))"
    return subprocess.run(
        # -P: the working directory is not importable by itself, as for the installed script.
        [sys.executable, "-P", "-c", f"{missing}; from onefold._cli import main; main()", *words],
        capture_output=True,
        text=True,
        env=surroundings(environment),
        cwd=cwd,
        input=given,
        timeout=300,
        check=False,
    )


def told(answer: subprocess.CompletedProcess[str]) -> Any:
    """What a command that succeeded said, as JSON."""
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def one_line(answer: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command failed with."""
    assert answer.returncode == 1, answer.stderr
    lines = answer.stderr.splitlines()
    assert len(lines) == 1, answer.stderr
    return lines[0]


def until(condition: Callable[[], object]) -> None:
    """Wait for something that must come."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Running:
    """A command at work."""

    process: Child
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None)
        assert text in self.said, self.said

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def started(*words: str, cwd: Path, **environment: str) -> Iterator[Running]:
    """A command that runs while the block lasts; killed at the end, if it still does."""
    log = cwd / f"{time.monotonic_ns()}.log"
    with Path(os.devnull).open() as nothing, log.open("wb") as file:
        process = command_line().start(
            *MAIN, *words, cwd=cwd, environment=surroundings(environment), streams=(nothing, file, file)
        )
    try:
        yield Running(process, log)
    finally:
        process.kill()
        process.wait(PATIENCE_S)


@dataclass(frozen=True, slots=True)
class Shop:
    """A directory with applications in it (see `applications/`), and the database they share."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "shop.db"

    def onefold(self, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return onefold(*words, cwd=self.folder, **more)

    def started(self, *words: str) -> Any:
        return started(*words, cwd=self.folder)

    def place(self, *orders: str, topic: str = "order.placed", key: str | None = None) -> list[str]:
        """Publish events; their ids."""
        return self.publish(topic, [{"order": order} for order in orders], key=key)

    def publish(
        self, topic: str, events: list[object], *, key: str | None = None, not_before: datetime | None = None
    ) -> list[str]:
        once = Onefold(self.database, source="shop")
        try:
            with once.transaction() as tx:
                return [str(tx.publish(topic, event, key=key, not_before=not_before)) for event in events]
        finally:
            once.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(query).fetchall()

    def change(self, statement: str) -> None:
        with closing(sqlite3.connect(self.database)) as connection:
            connection.execute(statement)
            connection.commit()

    def shipped(self) -> list[str]:
        return [order for (order,) in self.rows("SELECT order_id FROM shipped ORDER BY rowid")]

    def put(self, name: str) -> None:
        """A file that tells the applications what to do."""
        (self.folder / name).touch()

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()


def new_shop(folder: Path) -> Shop:
    for application in APPLICATIONS.glob("*.py"):
        shutil.copy(application, folder)
    shop = Shop(folder)
    Onefold(shop.database).close()
    shop.change("CREATE TABLE shipped (order_id TEXT NOT NULL)")
    return shop
