"""A statement that changes some rows at a time changes no more than it says, however Postgres plans it.

A subquery with a LIMIT that is joined may be run again for each row; it then passes over what the statement has
changed, and finds others. Which plan it is depends on statistics, so the tests ask for the worst.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onefold._app.migrations import MIGRATIONS
from onefold._client.journal import sql as journal
from onefold._idempotency.sql import postgres as idempotency
from onefold._inbox import sql as inbox
from onefold._kernel.effects import Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold._outbox import sql as outbox
from onefold._saga import effect_rows
from onefold.brokers.local import _sql as local
from onefold.db._migrations import migrate
from onefold.db._postgres_text import render_item
from onefold.db.psycopg import PsycopgDatabase
from onefold.testing.servers import PrivatePostgres
from tests.db.test_names import postgres_statements

#: With these off, a join with a subquery is a nested loop that runs it for each row.
OFF = ("enable_hashjoin", "enable_mergejoin", "enable_hashagg", "enable_sort", "enable_material")

#: What onefold's statements must not be: the same subquery, and the join that Postgres makes of it.
WORST = (
    "DELETE FROM onefold_inbox WHERE consumer = 'billing' AND message_id IN (SELECT message_id FROM onefold_inbox "
    "WHERE consumer = 'billing' AND handled_at < now() ORDER BY handled_at LIMIT 4 FOR UPDATE SKIP LOCKED)"
)

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def database(postgres: PrivatePostgres) -> Iterator[str]:
    dsn = postgres.fresh_database()
    opened = PsycopgDatabase(dsn)
    run(migrate("postgres", MIGRATIONS["postgres"]), ThreadExecutor(opened))
    opened.close()
    yield dsn
    postgres.drop_database(dsn)


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    """One that plans as badly as Postgres can, and leaves nothing."""
    with psycopg.connect(database) as connection:
        for setting in OFF:
            connection.execute(f"SET LOCAL {setting} = off".encode())
        yield connection
        connection.rollback()


def _reruns(plan: dict[str, Any], *, again: bool = False) -> Iterator[str]:
    """The nodes with a bound, or that lock, that are run for each row of another."""
    if again and plan["Node Type"] in ("Limit", "LockRows"):
        yield plan["Node Type"]
    for place, child in enumerate(plan.get("Plans", [])):
        once = child["Parent Relationship"] == "InitPlan"
        inner = plan["Node Type"] == "Nested Loop" and place == len(plan["Plans"]) - 1
        yield from _reruns(child, again=not once and (again or inner))


def _changed_by_reruns(connection: Connection, sql: str) -> list[str]:
    [([told],)] = connection.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {sql}".encode()).fetchall()
    changes = "ModifyTable" in json.dumps(told)
    return list(_reruns(told["Plan"])) if changes else []


def test_no_bound_of_a_statement_that_changes_rows_is_run_again(connection: Connection) -> None:
    assert [sql for sql in sorted(postgres_statements()) if _changed_by_reruns(connection, sql)] == []
    assert _changed_by_reruns(connection, WORST) == ["Limit", "LockRows"]  # the control


_OLD = "now() - interval '1 day'"
_SEVEN = "generate_series(1, 7) AS n"
_LETTER = "consumer, message_id, headers, data, envelope, state, reason, started, failed, history"
_EVENT = "bucket, id, source, topic, time, content_type, headers, data"

#: What writes seven rows, and what changes four of them.
CASES: dict[str, tuple[str, Statement]] = {
    "the ledger": (
        f"INSERT INTO onefold_inbox (consumer, message_id, handled_at) SELECT 'billing', n, {_OLD} FROM {_SEVEN}",
        inbox.STATEMENTS["postgres"].reap("billing", 1000, 4),
    ),
    "the end of a consumer": (
        f"INSERT INTO onefold_inbox (consumer, message_id, handled_at) SELECT 'billing', n, {_OLD} FROM {_SEVEN}",
        inbox.STATEMENTS["postgres"].registry.end("billing", 4)[0],
    ),
    "dead letters": (
        f"INSERT INTO onefold_letter ({_LETTER}, died_at) "
        f"SELECT 'billing', n, '', '', '', 'dead', '', 0, 0, '[]', {_OLD} FROM {_SEVEN}",
        inbox.STATEMENTS["postgres"].discard_some(("billing", None, None, None, None, None), 0, 4),
    ),
    "records": (
        "INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at)"
        f" SELECT decode(md5(n::text), 'hex'), '', '', 1, 201, '', '', {_OLD} FROM {_SEVEN}",
        idempotency.reap(4),
    ),
    "published events": (
        f"INSERT INTO onefold_outbox ({_EVENT}, published_at) "
        f"SELECT 0, n, '', '', '', '', '', '', {_OLD} FROM {_SEVEN}",
        Statement(outbox.STATEMENTS["postgres"].FORGET, (1000, 4)),
    ),
    "events that are due": (
        f"INSERT INTO onefold_outbox ({_EVENT}, due_at) SELECT 0, n, '', '', '', '', '', '', {_OLD} FROM {_SEVEN}",
        Statement(outbox.STATEMENTS["postgres"].MAKE_DUE_CLAIMABLE, (4,)),
    ),
    "intents": (
        "INSERT INTO onefold_intent (intent, key, fingerprint, target, resolved_at) "
        f"SELECT n, n, '', '', {_OLD} FROM {_SEVEN}",
        journal.STATEMENTS["postgres"].sweep(1000, 4),
    ),
    "effects of sagas": (
        f"INSERT INTO onefold_effect (key, state, created_at) SELECT n, 'applied', {_OLD} FROM {_SEVEN}",
        Statement(effect_rows.STATEMENTS["postgres"].reap, (1, 4)),
    ),
    "deliveries": (
        f"INSERT INTO onefold_delivery (consumer, id, headers, data) SELECT 'billing', n, '', '' FROM {_SEVEN}",
        local.STATEMENTS["postgres"].remove_waiting("billing", 4),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bound_holds_under_the_worst_plan(connection: Connection, case: str) -> None:
    rows, statement = CASES[case]
    connection.execute(rows.encode())
    assert connection.execute(render_item(statement).encode()).rowcount == 4


def test_the_worst_plan_breaks_a_bound_where_it_can(connection: Connection) -> None:
    """The control."""
    connection.execute(CASES["the ledger"][0].encode())
    assert connection.execute(WORST.encode()).rowcount == 7
