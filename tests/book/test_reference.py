"""The generated reference is whole: problems have texts, commands and tables are there, settings have ranges."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import get_args

import psycopg

from book import cli_page, problem_pages, settings_page, tables_page, telemetry_page
from book.files import PROBLEMS, ROOT
from onefold import Message, Onefold
from onefold._app.migrations import migrate_embedded
from onefold._inbox.consumer import Consumer
from onefold._worker.worker_settings import ConsumerSettings, RelaySettings
from onefold.policies import Policy, Quota
from onefold.telemetry import Event


def test_every_problem_has_its_text() -> None:
    assert list(problem_pages.find_gaps()) == []
    made = problem_pages.make_pages()
    assert made.keys() == {f"problems/{name}.md" for name in problem_pages.read_sections()}
    assert "urn:onefold:problem:key-in-flight` | 409 | yes" in made["problems/key-in-flight.md"]
    assert "## What the operator does" in made["problems/key-in-flight.md"]
    assert "(../why/why-409.md)" in made["problems/key-in-flight.md"]


def test_problems_without_a_text_are_found() -> None:
    planted = PROBLEMS.replace("## key-missing\n", "## key-mising\n").replace("**Operator.** Nothing.\n", "", 1)
    assert list(problem_pages.find_gaps(planted)) == [
        "key-missing has no section",
        "key-mising is no problem",
        "condition-failed has no **Operator.**",
    ]


def test_every_command_has_its_section() -> None:
    commands = cli_page.list_commands()
    assert {"onefold migrate", "onefold dlq redrive", "onefold keys resume"} <= set(commands)
    page = cli_page.make_page()
    assert set(re.findall(r"^#{2,} (onefold .*)$", page, re.MULTILINE)) == set(commands)
    assert "Variable: `ONEFOLD_DATABASE`" in page
    assert "| `--until-empty` |" in page


def test_settings_have_the_ranges_that_are_checked() -> None:
    assert settings_page.find_range(Policy, "wait_s", principal=lambda: "a") == "0 to 60"
    assert settings_page.find_range(Policy, "required", principal=lambda: "a") == ""
    assert settings_page.find_range(Quota, "in_flight")
    assert settings_page.list_undescribed() == []
    assert (
        "| `retention_s` | `86400.0` | 1 to 31622400 | how long an answer is remembered |" in settings_page.make_page()
    )


def test_the_tables_of_consumers_and_relays_have_every_setting_with_its_default_and_range() -> None:
    """Those of the pages, which are in the wheel; the generated page has the meanings from them."""
    made = settings_page.make_page()
    for page, listed, taken in (
        ("consumers", settings_page.list_consumer_settings(), {"order", *ConsumerSettings.__annotations__}),
        ("events", settings_page.list_relay_settings(), set(RelaySettings.__annotations__)),
    ):
        table = settings_page.read_table(page)
        assert table.keys() == {name for name, *_ in listed} == taken
        for name, default, shown in listed:
            *_, given, checked, meaning = table[name]
            assert (given.replace('"', "'"), checked) == (f"`{default}`", shown), name
            assert f"| `{name}` | `{default}` | {shown} | {meaning} |" in made
    assert "| `keep_published_s` | `0.0` | 0 to 31622400 |" in made, "a large number is written in full"


def test_how_long_attempts_last_is_as_the_page_of_consumers_says() -> None:
    text = (ROOT / "docs" / "consumers.md").read_text()
    rows = re.findall(r"^\| (\d+)(?: \(default\))? \| (\d+) to (\d+) minutes \|$", text, re.MULTILINE)
    assert len(rows) == 4
    shown = {int(attempts): (int(least), int(most)) for attempts, least, most in rows}
    for attempts, minutes in shown.items():
        consumer = Consumer(name="any", topics=("any",), handler=_ignore, attempts=attempts)
        assert minutes == (_total_minutes(consumer, 0.0), _total_minutes(consumer, 1.0))
    assert Consumer(name="any", topics=("any",), handler=_ignore).attempts == 15
    assert "| 15 (default) |" in text
    hour = min(attempts for attempts, (least, _) in shown.items() if least >= 60)
    assert f"For an outage of an hour choose {hour} or more" in text
    assert f"attempts={hour}," in (ROOT / "docs" / "production.md").read_text()


def _total_minutes(consumer: Consumer, chance: float) -> int:
    """All its pauses together."""
    pauses_s = (consumer.backoff.pause_s(failed, draw=lambda: chance) for failed in range(1, consumer.attempts))
    return round(sum(pauses_s) / 60)


def _ignore(message: Message) -> None:
    """A handler."""


def test_every_event_is_on_the_page_of_telemetry() -> None:
    page = telemetry_page.make_page()
    assert {kind.__name__ for kind in get_args(Event)} == set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    assert "| `onefold_requests_total` | `onefold.requests` | counter | `operation`, `outcome` |" in page


def test_the_tables_of_the_page_are_those_of_the_databases(tmp_path: Path, postgres_dsn: str) -> None:
    migrate_embedded(tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onefold%'")
        there = {
            name: {column[1] for column in connection.execute(f"PRAGMA table_info({name})")}
            for (name,) in tables.fetchall()
        }
    assert {table: set(columns) for table, columns in tables_page.read_columns("sqlite").items()} == there
    with closing(Onefold(postgres_dsn)) as once, psycopg.connect(postgres_dsn) as server:
        once.migrate()
        rows = server.execute(
            "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        )
        listed = {
            (table, column) for table, columns in tables_page.read_columns("postgres").items() for column in columns
        }
        assert listed == set(rows.fetchall())
