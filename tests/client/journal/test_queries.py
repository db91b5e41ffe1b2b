"""What people see of the journal: pages, counts, one intent; and its tables, where there are none."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from onefold._app.migrations import MIGRATIONS as ALL
from onefold._client.journal.flow import Journal
from onefold._client.journal.queries import counts, forget, intent_of, intents
from onefold._client.journal.records import IntentCounts
from onefold._client.journal.schema import MIGRATIONS, prepare
from onefold._client.journal.sql import STATEMENTS
from onefold._kernel.effects import Flow
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate
from onefold.db._postgres_text import render_item
from onefold.errors import ConfigurationError, SchemaMissing
from tests.client.journal.backends import HASH, PAY, TARGET, Backend


async def test_intents_are_listed_in_pages_the_oldest_first(backend: Backend) -> None:
    journal = backend.journal()
    names = [f"i{number}" for number in (3, 1, 4, 5, 9)]
    for name in names:
        await backend.claim(journal, name)
    await backend.flow(journal.resolve("i4", 200))
    assert await backend.unresolved() == ["i3", "i1", "i5", "i9"]
    seen: list[str] = []
    after = None
    while page := await backend.flow(intents(backend.dialect, False, 2, after)):
        assert len(page) <= 2
        seen += [each.intent for each in page]
        after = page[-1].position
        await backend.flow(forget(backend.dialect, page[-1].intent))  # a page is found also when the last one is gone
    assert seen == names


async def test_an_intent_is_shown_with_all_that_is_known_of_it(backend: Backend) -> None:
    assert await backend.flow(intent_of(backend.dialect, PAY)) is None
    await backend.claim(backend.journal())
    await backend.age(PAY, 100)
    found = await backend.flow(intent_of(backend.dialect, PAY))
    assert (found.key, found.target, found.tries, found.reason, found.status) == ("key-1", TARGET, 1, None, None)
    assert 100 <= found.age_s < 200
    assert found.resolved_ms is None
    assert [found.position] == [each.position for each in await backend.listed()]


async def test_counts_tell_how_many_and_how_old_and_stop_at_a_limit(backend: Backend) -> None:
    assert await backend.flow(counts(backend.dialect)) == IntentCounts(0, 0, None, cut=False)
    journal = backend.journal()
    for name in ("a", "b", "c"):
        await backend.claim(journal, name)
    await backend.flow(journal.resolve("a", 200))
    await backend.age("b", 50)
    found = await backend.flow(counts(backend.dialect))
    assert (found.unresolved, found.resolved, found.cut) == (2, 1, False)
    assert 50 <= found.oldest_s < 100
    assert (await backend.flow(counts(backend.dialect, 2))).cut is True


async def test_what_is_not_there_cannot_be_forgotten(backend: Backend) -> None:
    await backend.claim(backend.journal())
    assert await backend.flow(forget(backend.dialect, "pay:ord-43")) is False
    assert await backend.unresolved() == [PAY]


@pytest.mark.parametrize("limit", [0, 1001])
async def test_a_page_has_bounds(backend: Backend, limit: int) -> None:
    with pytest.raises(ConfigurationError, match=f"limit={limit}"):
        await backend.flow(intents(backend.dialect, True, limit))


async def test_no_statement_reads_the_whole_journal(on_postgres: Backend) -> None:
    await on_postgres.change(
        "INSERT INTO onefold_intent (intent, key, fingerprint, target, resolved_at) "
        "SELECT 'i' || n, 'k' || n, '', '', CASE WHEN n % 1000 > 0 THEN now() END FROM generate_series(1, 20000) AS n"
    )
    await on_postgres.change("ANALYZE onefold_intent")
    sql = STATEMENTS["postgres"]
    for statement, index in (
        (sql.forget_old("i7", 1), "onefold_intent_intent_key"),
        (sql.look("i7"), "onefold_intent_intent_key"),
        (sql.resolve("i7", 200), "onefold_intent_intent_key"),
        (sql.sweep(1000, 10), "onefold_intent_resolved"),
        (sql.list_page(10, 5, unresolved_only=True), "onefold_intent_unresolved"),
        (sql.list_page(10, 5, unresolved_only=False), "onefold_intent_pkey"),
        (sql.counts(10), "onefold_intent_unresolved"),
    ):
        plan = "\n".join(line for (line,) in await on_postgres.rows(f"EXPLAIN {render_item(statement)}"))
        assert index in plan, plan


# --- its tables -----------------------------------------------------------------------------------------------


def asked(address: str, *flows: Any) -> Any:
    """What the last of these flows answers; each is a function of the dialect."""
    answer = None
    with closing(sync_database(address)) as database:
        for flow in flows:
            made: Flow[Any] = flow(database.dialect)
            answer = run(made, ThreadExecutor(database))
    return answer


def claimed(dialect: str) -> Flow[Any]:
    return Journal(dialect).claim(PAY, HASH, TARGET)


@pytest.mark.parametrize("question", [claimed, intents, counts], ids=["claim", "list", "count"])
def test_a_database_without_the_table_says_what_to_run(address: str, question: Any) -> None:
    with pytest.raises(SchemaMissing, match="onefold migrate"):
        asked(address, question)


def test_a_file_of_its_own_is_prepared_once_and_can_be_migrated_later(address: str) -> None:
    assert asked(address, prepare, prepare, claimed).known is False
    applied = asked(address, lambda dialect: migrate(dialect, ALL[dialect]))
    assert sorted([*applied, *MIGRATIONS["sqlite"]]) == sorted(ALL["sqlite"])
    assert asked(address, prepare, claimed).known is True


def test_a_database_that_an_older_onefold_migrated_is_left_to_its_operator(address: str) -> None:
    def without_the_journal(dialect: str) -> Flow[Any]:
        return migrate(
            dialect, {number: steps for number, steps in ALL[dialect].items() if number not in MIGRATIONS[dialect]}
        )

    asked(address, without_the_journal)
    with pytest.raises(SchemaMissing, match="onefold migrate"):
        asked(address, prepare)
