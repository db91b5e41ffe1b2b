"""What a settle over an expired record leaves behind: the same as if nothing had been."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold import Onefold, single_principal
from onefold._idempotency.model import SCHEMA_VERSION, Answer, Ask
from onefold._idempotency.sql import sqlite
from onefold._kernel.effects import Statement

ASK = Ask(digest=b"d" * 16, fingerprint=b"f" * 16, operation="POST /orders", lease_s=60.0, retention_s=3600.0)
RETENTION_MS = 3_600_000
SETTLE = sqlite.settle(ASK, Answer(201, b"head", b"body"))

_OLD_RECORD = "INSERT INTO onefold_record VALUES (?1, x'00', 'POST /old', 0, 500, x'00', x'00', 0)"


@pytest.fixture
def file(sqlite_path: Path) -> Iterator[sqlite3.Connection]:
    once = Onefold(str(sqlite_path), principal=single_principal)
    once.migrate()
    once.close()
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as connection:
        yield connection


def execute(file: sqlite3.Connection, statement: Statement) -> None:
    file.execute(statement.sql, statement.values)


def row_of(file: sqlite3.Connection, table: str) -> tuple[Any, ...]:
    [row] = file.execute(f"SELECT * FROM {table}").fetchall()
    return tuple(row)


def is_from_now(moment_ms: int, ms: int) -> bool:
    return abs(moment_ms - ms - time.time() * 1000) < 30_000  # a slow machine, not another span


@pytest.mark.parametrize("expired", [False, True])
def test_a_record_in_the_place_of_an_expired_one_is_like_a_new_one(file: sqlite3.Connection, expired: bool) -> None:
    if expired:
        file.execute(_OLD_RECORD, (ASK.digest,))
    execute(file, SETTLE)
    *record, expires_at_ms = row_of(file, "onefold_record")
    assert record == [ASK.digest, ASK.fingerprint, ASK.operation, SCHEMA_VERSION, 201, b"head", b"body"]
    assert is_from_now(expires_at_ms, RETENTION_MS)


def test_a_record_that_is_not_expired_is_never_overwritten(file: sqlite3.Connection) -> None:
    execute(file, SETTLE)
    before = row_of(file, "onefold_record")
    with pytest.raises(sqlite3.IntegrityError, match="NOT NULL"):
        execute(file, sqlite.settle(ASK, Answer(500, b"", None)))
    assert row_of(file, "onefold_record") == before
