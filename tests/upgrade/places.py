"""Databases as an earlier release left them, and what it sent to them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg

from onefold._kernel.effects import BatchItem, Boundary, Statement

RECORDED: Final = Path(__file__).parent / "release_0_1"


def dialect_of(address: str) -> str:
    return "postgres" if address.startswith("postgres") else "sqlite"


def restore(address: str) -> None:
    """Fill an empty database with the recorded dump."""
    dump = (RECORDED / f"{dialect_of(address)}.sql").read_text()
    if dialect_of(address) == "postgres":
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(dump.encode())
        return
    with closing(sqlite3.connect(address)) as file:
        file.executescript(dump)


def rows(address: str, sql: str) -> list[tuple[Any, ...]]:
    if dialect_of(address) == "postgres":
        with psycopg.connect(address, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(address, isolation_level=None)) as file:
        return file.execute(sql).fetchall()


def sent(dialect: str) -> list[tuple[BatchItem, ...] | Statement]:
    """What the earlier release sent, in order: batches and fetches."""
    heard = json.loads((RECORDED / f"{dialect}.json").read_text())
    return [tuple(map(_step, entry)) if isinstance(entry, list) else _statement(entry) for entry in heard]


def _step(written: Any) -> BatchItem:
    return Boundary[written] if isinstance(written, str) else _statement(written)


def _statement(written: Any) -> Statement:
    values = (bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in written["values"])
    return Statement(written["sql"], tuple(values))
