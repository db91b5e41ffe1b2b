"""`onefold intents`: the calls of which nobody knows the end, and forgetting one on purpose."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold._client.journal.flow import Journal
from onefold._client.journal.location import make_private
from onefold._client.journal.schema import prepare
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.db._drivers import sync_database
from tests.cli.commands import one_line, onefold, told

HASH = b"h" * 16
PAYMENTS = "POST https://bank.example/payments"


def fill(database: str | Path, *names: str) -> None:
    """A journal in which the first call was left, the last one answered."""
    with closing(sync_database(database)) as opened:
        keys = iter(f"key-of-{name}" for name in names)
        journal = Journal(opened.dialect, new_key=lambda: next(keys))
        for flow in (
            prepare(opened.dialect),
            *(journal.claim(name, HASH, PAYMENTS) for name in names),
            journal.leave(names[0], "ReadTimeout after 3 attempts"),
            journal.resolve(names[-1], 201),
        ):
            ended: Any = run(flow, ThreadExecutor(opened))
            del ended


@pytest.fixture
def database(sqlite_path: Path) -> str:
    """The address of a journal with three intents."""
    fill(sqlite_path, "pay:1", "pay:2", "pay:3")
    return str(sqlite_path)


def names(*words: str, **environment: Any) -> list[str]:
    return [each["intent"] for each in told(onefold("intents", "--json", *words, **environment))["intents"]]


def test_the_unresolved_are_listed_the_oldest_first(database: str) -> None:
    found = told(onefold("intents", "-d", database, "--json"))
    assert (found["unresolved"], found["resolved"], found["cut"]) == (2, 1, False)
    first, second = found["intents"]
    assert (first["intent"], first["target"], first["key"]) == ("pay:1", PAYMENTS, "key-of-pay:1")
    assert (first["tries"], first["reason"], first["status"]) == (1, "ReadTimeout after 3 attempts", None)
    assert 0 <= second["age_s"] <= first["age_s"] <= found["oldest_s"]
    assert first["claimed"].endswith("+00:00")
    assert (second["intent"], second["reason"], second["resolved"]) == ("pay:2", None, None)


def test_that_nothing_is_unresolved_is_said_without_an_age(database: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DELETE FROM onefold_intent")
        connection.commit()
    assert "nothing is unresolved\n" in onefold("intents", "-d", database).stdout


def test_people_are_told_the_same(database: str) -> None:
    text = onefold("intents", "-d", database).stdout
    assert "unresolved: 2, the oldest for" in text
    [line] = [line for line in text.splitlines() if "pay:1" in line]
    for part in (PAYMENTS, "key-of-pay:1", "ReadTimeout after 3 attempts"):
        assert part in line
    assert "pay:3" not in text


def test_all_of_them_are_listed_when_asked_for_and_no_more_than_so_many(database: str) -> None:
    assert names("-d", database, "--all") == ["pay:1", "pay:2", "pay:3"]
    assert names("-d", database, "--all", "--limit", "2") == ["pay:1", "pay:2"]
    text = onefold("intents", "-d", database, "--all", "--limit", "2").stdout
    assert "2 of 3 are shown: raise --limit" in text
    assert "201" in onefold("intents", "-d", database, "--all").stdout


def test_more_than_a_page_is_listed(sqlite_path: Path) -> None:
    many = [f"pay:{number}" for number in range(501)]
    fill(sqlite_path, *many)
    assert names("-d", str(sqlite_path), "--all", "--limit", "1000") == many


def test_an_intent_is_forgotten_when_a_person_says_so(database: str) -> None:
    words = ("intents", "forget", "pay:1", "-d", database)
    refused = onefold(*words, given="n\n")
    assert refused.returncode == 1
    assert f"{PAYMENTS}, key key-of-pay:1, was claimed" in refused.stderr
    assert "never answered" in refused.stderr
    assert "it happens twice" in refused.stderr
    assert names("-d", database) == ["pay:1", "pay:2"]
    assert onefold(*words, given="y\n").stdout == "forgotten: pay:1, key key-of-pay:1\n"
    assert names("-d", database) == ["pay:2"]
    forgotten = told(onefold("intents", "-d", database, "forget", "pay:3", "--yes", "--json"))
    assert (forgotten["forgotten"], forgotten["intent"], forgotten["status"]) == (1, "pay:3", 201)
    assert names("-d", database, "--all") == ["pay:2"]


def test_a_name_that_is_not_there_is_named(database: str) -> None:
    assert "there is no intent 'pay:9'" in one_line(onefold("intents", "forget", "pay:9", "-y", "-d", database))


def test_without_a_database_it_is_the_users_own_journal(tmp_path: Path) -> None:
    place: dict[str, Any] = {"XDG_STATE_HOME": str(tmp_path)}
    said = one_line(onefold("intents", **place))
    assert "no client of this user has named an intent yet" in said
    assert list(tmp_path.iterdir()) == []
    fill(make_private(tmp_path / "onefold" / "intents.db"), "pay:1", "pay:2")
    assert names(**place) == ["pay:1"]
    assert onefold("intents", "forget", "pay:1", "-y", **place).returncode == 0
    assert names(**place) == []


def test_a_variable_names_the_journal_and_what_is_given_goes_before_it(tmp_path: Path) -> None:
    for file, name in (("variable.db", "a"), ("given.db", "b")):
        fill(tmp_path / file, name, "answered")
    place: dict[str, Any] = {"ONEFOLD_JOURNAL": str(tmp_path / "variable.db")}
    given = ("-d", str(tmp_path / "given.db"))
    assert (names(**place), names(*given, **place)) == (["a"], ["b"])
    assert onefold("intents", *given, "forget", "b", "-y", **place).returncode == 0
    assert onefold("intents", "forget", "a", "-y", **place).returncode == 0
    assert (names(**place), names(*given, **place)) == ([], [])


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    answer = onefold("intents", "-d", str(tmp_path / "typo.db"))
    assert answer.returncode == 2
    assert "there is no SQLite file" in " ".join(answer.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_the_table_says_what_to_run(sqlite_path: Path) -> None:
    sqlite_path.touch()
    assert "run `onefold migrate`" in one_line(onefold("intents", "-d", str(sqlite_path)))
    assert onefold("migrate", "-d", str(sqlite_path)).returncode == 0
    assert names("-d", str(sqlite_path)) == []


def test_on_postgres_it_is_the_same(postgres_dsn: str) -> None:
    fill(postgres_dsn, "pay:1", "pay:2", "pay:3")
    assert names("-d", postgres_dsn) == ["pay:1", "pay:2"]
    assert onefold("intents", "forget", "pay:1", "-y", ONEFOLD_JOURNAL=postgres_dsn).returncode == 0
    assert names("--all", ONEFOLD_JOURNAL=postgres_dsn) == ["pay:2", "pay:3"]
