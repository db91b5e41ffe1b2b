"""The command line as an operator meets it: in a process of its own."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import psycopg

from onefold._app.migrations import MIGRATIONS
from onefold._kernel.redaction import redact
from tests.cli.commands import onefold


def test_migrate_creates_the_tables_once_and_says_so(postgres_dsn: str) -> None:
    assert (
        onefold("migrate", "-d", postgres_dsn).stdout
        == f"applied to {redact(postgres_dsn)}: {', '.join(map(str, sorted(MIGRATIONS['postgres'])))}\n"
    )
    assert onefold("migrate", ONEFOLD_DATABASE=postgres_dsn).stdout == "up to date\n"
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO onefold_migration (version) VALUES (1000)")
    assert onefold("migrate", "-d", postgres_dsn).stdout.startswith("newer, fine: a newer onefold has applied 1000;")
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM onefold_record").fetchone() == (0,)


def test_the_printed_sql_makes_the_same_schema_as_the_command(tmp_path: Path) -> None:
    by_hand, by_command = tmp_path / "hand.db", tmp_path / "command.db"
    connection = sqlite3.connect(by_hand)
    connection.executescript(onefold("migrate", "-d", str(by_hand), "--print").stdout)
    connection.close()
    onefold("migrate", "-d", str(by_command))
    assert _schema(by_hand) == _schema(by_command) != []
    assert onefold("migrate", "-d", str(by_hand)).stdout == "up to date\n"


def _schema(path: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    connection.close()
    return [(name, " ".join((sql or "").split())) for name, sql in rows]


def test_printing_opens_no_database(tmp_path: Path) -> None:
    assert onefold("migrate", "-d", str(tmp_path / "none.db"), "--print").returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_reap_does_not_create_the_file_it_was_told_by_mistake(tmp_path: Path) -> None:
    answer = onefold("reap", "-d", str(tmp_path / "typo.db"))
    assert answer.returncode == 2
    assert "there is no SQLite file" in " ".join(answer.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_reap_forgets_what_has_expired_and_counts_it(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    onefold("migrate", "-d", str(path))
    connection = sqlite3.connect(path)
    for digest, expires_at_ms in ((b"old", 1), (b"new", 1 << 60)):
        connection.execute(
            "INSERT INTO onefold_record VALUES (?, x'', 'POST /', 1, 200, x'', x'', ?)", (digest, expires_at_ms)
        )
    connection.commit()
    assert json.loads(onefold("reap", "-d", str(path), "--json").stdout) == {"records": 1}
    assert connection.execute("SELECT digest FROM onefold_record").fetchall() == [(b"new",)]
    connection.close()


def test_the_pg_cron_job_deletes_what_reap_deletes(postgres_dsn: str) -> None:
    onefold("migrate", "-d", postgres_dsn)
    job = onefold("reap", "--print-cron").stdout
    statement = job.split("$$")[1]
    with psycopg.connect(postgres_dsn) as connection:
        for digest, expires in ((b"old", "-1 h"), (b"new", "1 h")):
            connection.execute(
                "INSERT INTO onefold_record VALUES (%s, '', 'POST /', 1, 200, '', '', now() + %s::interval)",
                (digest, expires),
            )
        connection.execute(statement.encode())
        assert connection.execute("SELECT digest FROM onefold_record").fetchall() == [(b"new",)]


def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    answer = onefold("migrate", "-d", "postgresql://someone:hunter2@127.0.0.1:1/x")
    assert answer.returncode == 1
    assert "127.0.0.1" in answer.stderr
    assert answer.stderr.endswith("; is a server up there, and are host and port right?\n")
    assert "hunter2" not in answer.stderr + answer.stdout


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    answer = onefold("migrate", "-d", str(tmp_path / "no" / "such" / "folder.db"))
    assert answer.returncode == 1
    assert "folder.db" in answer.stderr


def test_a_missing_database_says_how_to_give_one() -> None:
    answer = onefold("reap")
    assert answer.returncode == 2
    assert "ONEFOLD_DATABASE" in answer.stderr
