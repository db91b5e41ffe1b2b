"""A saga that counts in a database of its own, without a key: in a transaction of `s.tx`, or in a plain step that
commits by itself, which is the control. And the program of its worker."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from onefold.sagas import Abort, Compensated, Saga, saga
from onefold.sagas.dbos import Dbos
from tests.saga.kills.sagas import QUICK, RETRY
from tests.saga.kills.world import Outside
from tests.saga.quick_engines import hurry
from tests.support.patience import PATIENCE_S

OUTSIDE: list[Outside] = []
SHOP: list[Path] = []


def add(session: Session, o: dict[str, Any], *, action: str = "count", by: int = 1) -> None:
    OUTSIDE[0].die(action, "before")
    session.execute(sa.text(f"UPDATE counter SET value = value + {by}"))
    OUTSIDE[0].die(action, "mid")
    session.info["counted"] = action


def take_back(session: Session, o: dict[str, Any]) -> None:
    add(session, o, action="take_back", by=-1)


def die_committed(session: Session) -> None:
    """The user's database has it, and the engine was not told."""
    if action := session.info.pop("counted", None):
        OUTSIDE[0].die(action, "end")


def add_alone(o: dict[str, Any]) -> None:
    with closing(sqlite3.connect(SHOP[0])) as db:
        db.execute("UPDATE counter SET value = value + 1")
        db.commit()
    OUTSIDE[0].die("count", "end")


def refuse(o: dict[str, Any]) -> None:
    if o["aborts"]:
        raise Abort("not today")


@saga("counting", undo_retry=RETRY, undo_pause=QUICK)
async def counting(s: Saga, o: dict[str, Any]) -> None:
    if o["alone"]:
        await s.step("count", add_alone, o)
    else:
        await s.tx("count", add, o, undo=take_back)
    await s.step("refuse", refuse, o)


def create_counter(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE counter (value INTEGER)")
        db.execute("INSERT INTO counter VALUES (0)")
        db.commit()


def read_counter(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        (value,) = db.execute("SELECT value FROM counter").fetchone()
    return int(value)


async def work(url: str, database: sa.Engine, given: dict[str, Any]) -> str:
    async with Dbos(url, sagas=[counting], takeover_s=0.2, database=database) as engine:
        await engine.start(counting, "counts", given)
        try:
            await engine.result("counts", timeout_s=PATIENCE_S)
        except Compensated:
            return "compensated"
    return "completed"


def main(url: str, world: str, shop: str, at: str, aborts: str, alone: str) -> None:
    OUTSIDE.append(Outside(Path(world), at))
    SHOP.append(Path(shop))
    hurry(pytest.MonkeyPatch())
    sa.event.listen(Session, "after_commit", die_committed)
    database = sa.create_engine(f"sqlite:///{shop}")
    print(asyncio.run(work(url, database, {"aborts": aborts == "True", "alone": alone == "True"})), flush=True)
