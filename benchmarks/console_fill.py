"""Fills onefold's tables with the rows of `console_rows.py`, fast: millions of them in minutes.

Indexes are dropped first and made again of all rows at the end. What a power cut would take does not matter here:
Postgres' tables are unlogged, and SQLite does not wait for the disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

import psycopg

from benchmarks.console_rows import statements

#: Constraints first: an index that belongs to one goes with it.
_CONSTRAINTS: Final = """
    SELECT conrelid::regclass::text, quote_ident(conname), pg_get_constraintdef(oid) FROM pg_constraint
    WHERE contype IN ('p', 'u') AND conrelid::regclass::text LIKE 'onefold%' ORDER BY conrelid
"""
_INDEXES: Final = """
    SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indrelid::regclass::text LIKE 'onefold%'
"""

Tell = Callable[[str], None]


def fill(
    address: str, rows: int, *, counts_per_span: int = 1600, consumers: int = 20, tell: Tell = lambda _: None
) -> None:
    """Rows in each table of a database that has nothing in them, and what a server knows of them after a while."""
    dialect = "postgres" if address.startswith("postgres") else "sqlite"
    filling = list(statements(dialect, rows, counts_per_span=counts_per_span, consumers=consumers))
    if dialect == "postgres":
        with psycopg.connect(address, autocommit=True) as server:
            _fill_postgres(server, filling, tell)
    else:
        with closing(sqlite3.connect(address, isolation_level=None)) as file:
            _fill_sqlite(file, filling, tell)


def _fill_postgres(server: psycopg.Connection, filling: list[str], tell: Tell) -> None:
    def execute(sql: str) -> None:
        server.execute(sql.encode())

    execute("SET maintenance_work_mem = '512MB'")
    constraints = server.execute(_CONSTRAINTS.encode()).fetchall()
    for table, name, _ in constraints:
        execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    indexes = server.execute(_INDEXES.encode()).fetchall()
    for name, _ in indexes:
        execute(f"DROP INDEX {name}")
    for sql in filling:
        execute(f"ALTER TABLE {_table_of(sql)} SET UNLOGGED")
        _timed(execute, sql, tell)
    for table, name, definition in constraints:
        execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
    for name, definition in indexes:
        _timed(execute, definition, tell, name)
    _timed(execute, "VACUUM (ANALYZE)", tell, "vacuum")


def _fill_sqlite(file: sqlite3.Connection, filling: list[str], tell: Tell) -> None:
    def execute(sql: str) -> None:
        file.execute(sql)

    [(mode,)] = file.execute("PRAGMA journal_mode")
    for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -500000", "analysis_limit = 1000"):
        execute(f"PRAGMA {setting}")
    # Those that SQLite made for a constraint have no text.
    indexes = file.execute("SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL").fetchall()
    execute("BEGIN")
    for name, _ in indexes:
        execute(f"DROP INDEX {name}")
    for sql in filling:
        _timed(execute, sql, tell)
    for name, definition in indexes:
        _timed(execute, definition, tell, name)
    execute("COMMIT")
    _timed(execute, "ANALYZE", tell, "analyze")
    execute(f"PRAGMA journal_mode = {mode}")


def _table_of(sql: str) -> str:
    return sql.split()[2]


def _timed(execute: Tell, sql: str, tell: Tell, name: str = "") -> None:
    began = time.perf_counter()
    execute(sql)
    tell(f"{name or _table_of(sql)}: {time.perf_counter() - began:.0f} s")
