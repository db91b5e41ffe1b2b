"""What a page reads does not grow with the tables: counted in pages of the database and in steps of SQLite's machine,
not in seconds. `benchmarks/console.py` times the same pages with five million rows in each table."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest

from benchmarks.console import opened, probe, visit_pages
from benchmarks.console_fill import fill
from onefold._console.pages import dead_letters_page, outbox_page, overview_page
from onefold._kernel.effects import Row, Statement
from onefold._kernel.executors import TaskExecutor
from onefold._outbox import event_lists
from onefold.db._postgres_text import render_item
from onefold.testing.servers import PrivatePostgres

#: In each table. The smaller one has more of everything than a page lists or counts.
FEW: Final = 4_000
MANY: Final = 16_000
#: How often a statement is asked: from the sixth time on Postgres may plan it for any values, and another way.
ASKED: Final = 7
#: A walk through a table grows fourfold. An index has one level more, or a page is split otherwise.
GROWTH_MAX: Final = 2.0
#: What is small enough not to be looked at: the growth of little is chance.
LITTLE: Final = {"postgres": 100, "sqlite": 5_000}

COUNT = Statement("SELECT count(*) FROM onefold_letter WHERE reason <> ''")


@contextmanager
def overheard() -> Iterator[list[Statement]]:
    """The statements that pages ask."""
    heard: list[Statement] = []
    fetch = TaskExecutor.fetch

    async def listen(self: TaskExecutor[object], statement: Statement) -> list[Row]:
        heard.append(statement)
        return await fetch(self, statement)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskExecutor, "fetch", listen)
        yield heard


def cost(address: str, statement: Statement) -> int:
    """Pages of the database that it reads, or steps of SQLite's machine."""
    if address.startswith("postgres"):
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"PREPARE asked AS {statement.sql}".encode())
            values = render_item(Statement(_call(len(statement.values)), statement.values))
            for _ in range(ASKED):
                [(told,)] = connection.execute(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE asked{values}".encode()
                )
            [plan] = told if isinstance(told, list) else json.loads(told)
            return int(plan["Plan"]["Shared Hit Blocks"]) + int(plan["Plan"]["Shared Read Blocks"])
    with closing(sqlite3.connect(address)) as file:
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 100

        file.create_function("onefold_locked", -1, lambda *_: 0)  # looks at no table
        file.set_progress_handler(count, 100)
        file.execute(statement.sql, statement.values).fetchall()
        return steps


def _call(values: int) -> str:
    return f"({', '.join(f'${number + 1}' for number in range(values))})" if values else ""


async def costs(address: str, rows: int) -> dict[str, tuple[int, Statement]]:
    """Of each statement of each page: the greatest cost, by its text."""
    async with opened(address) as empty:
        await empty.migrate()
    fill(address, rows, counts_per_span=20, consumers=2)
    async with opened(address) as once:
        await probe(once)
        with overheard() as heard:
            await visit_pages(once, looks=1)
    found: dict[str, tuple[int, Statement]] = {}
    for statement in [*heard, COUNT]:
        spent = cost(address, statement)
        if spent >= found.get(statement.sql, (0, statement))[0]:
            found[statement.sql] = (spent, statement)
    return found


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
async def test_no_page_reads_more_when_there_is_more(
    dialect: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in (overview_page, outbox_page, dead_letters_page):
        monkeypatch.setattr(page, "COUNT_MAX", 50)
    monkeypatch.setattr(outbox_page, "LIMIT", 5)
    monkeypatch.setattr(event_lists, "LOOKED_AT_MAX", 100)
    if dialect == "postgres":
        server: PrivatePostgres = request.getfixturevalue("postgres")
        places = [server.fresh_database() for _ in range(2)]
    else:
        places = [str(tmp_path / name) for name in ("few.db", "many.db")]
    few, many = await costs(places[0], FEW), await costs(places[1], MANY)
    if dialect == "postgres":
        for place in places:
            server.drop_database(place)
    grown = {
        sql: (few[sql][0], spent)
        for sql, (spent, _) in many.items()
        if sql in few and spent > LITTLE[dialect] and spent > GROWTH_MAX * few[sql][0]
    }
    assert COUNT.sql in grown, "the control: a count of a table is found"
    del grown[COUNT.sql]
    assert len(many) > 25, "all pages were visited"
    assert not grown, "\n".join(f"{costs}: {' '.join(sql.split())}" for sql, costs in grown.items())
