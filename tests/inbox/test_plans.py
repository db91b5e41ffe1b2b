"""The statements that run all the time find their rows by an index, however many failed messages are dead or parked."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from onefold._inbox import discard_and_skip
from onefold._inbox.message_identity import identity_of
from onefold._inbox.redrive import Filter
from onefold._inbox.sql import STATEMENTS
from onefold.db._postgres_text import render_item
from tests.inbox.backends import Backend

SQL = STATEMENTS["postgres"]
STREAM = b"s" * 16
WHO = identity_of("m7", "shop")
THOSE = json.dumps([asdict(identity_of(name, "shop")) for name in ("m7", "m8")])

LEFT = json.dumps(["order.cancelled"])
HELD = json.dumps([{"name": name, "started": 1, "failed": 0} for name in ("m7", "m8")])


async def crowd(backend: Backend) -> None:
    for state, due, count in (("dead", "NULL", 20_000), ("waiting", "NULL", 20_000), ("waiting", "now()", 20)):
        await backend.change(
            "INSERT INTO onefold_letter (consumer, message_id, state, headers, data, envelope, stream, epoch, version, "
            "reason, started, failed, history, due_at, died_at) "
            f"SELECT 'billing', '{state}{due}' || n, '{state}', '{{}}', '', '{{}}', "
            f"decode(md5(n::text), 'hex'), 1, n, '', 0, 0, '[]', {due}, now() FROM generate_series(1, {count}) AS n"
        )
    await backend.change("INSERT INTO onefold_inbox SELECT 'billing', 'm' || n FROM generate_series(1, 20000) AS n")
    await backend.change("ANALYZE onefold_letter")
    await backend.change("ANALYZE onefold_inbox")


PLANS = [
    (SQL.claim("none", "billing", WHO, None, kept=False), "onefold_letter_pkey"),
    (SQL.next_due("billing", LEFT), "onefold_letter_due"),
    (SQL.take("billing", 1000, 4, LEFT, suspects=False), "onefold_letter_due"),
    (SQL.take("billing", 1000, 1, LEFT, suspects=True), "onefold_letter_due"),
    (SQL.kill_suspects("billing", "", 3), "onefold_letter_due"),
    (SQL.wake("billing", STREAM, 1, 7), "onefold_letter_stream"),
    (SQL.look("billing", STREAM, 1, WHO), "onefold_letter_stream"),
    (SQL.reap("billing", 1000, 10), "onefold_inbox_handled_at"),
    (SQL.id_conflict("billing", WHO), "onefold_inbox_pkey"),
    (SQL.any_id_conflict("billing", THOSE), "onefold_letter_pkey"),
    (SQL.claim_many("billing", THOSE), "onefold_letter_pkey"),
    (SQL.runs.take("billing", STREAM, 1, 7, 1000, 100), "onefold_letter_stream"),
    (SQL.in_hand.ours("billing", HELD), "onefold_letter_pkey"),
    (SQL.in_hand.give_back("billing", HELD, None), "onefold_letter_pkey"),
    (SQL.in_hand.dead_letter("billing", HELD, "late"), "onefold_letter_pkey"),
    (SQL.in_hand.renew("billing", HELD, 1000), "onefold_letter_pkey"),
    (SQL.runs.drop("billing", '["m7", "m8"]'), "onefold_letter_pkey"),
    (SQL.runs.known("billing", THOSE), "onefold_letter_pkey"),
    (SQL.newest_dead(Filter(consumer="billing").values(), None, 50), "onefold_letter_dead"),
    (SQL.newest_dead(Filter(consumer="billing").values(), (10**15, "m7"), 50), "onefold_letter_dead"),
    (SQL.consumers_with_failed(), "Index Only Scan"),
    (SQL.find("billing", "m7"), "onefold_letter_pkey"),
]


async def test_no_statement_reads_a_whole_table(on_postgres: Backend) -> None:
    await crowd(on_postgres)
    for statement, index in PLANS:
        plan = "\n".join(line for (line,) in await on_postgres.rows(f"EXPLAIN {render_item(statement)}"))
        assert index in plan, plan
        assert "Seq Scan on onefold_letter" not in plan, plan
        assert "Seq Scan on onefold_inbox" not in plan, plan


async def test_dead_letters_are_listed_and_discarded_by_time_and_reason_from_their_index(on_postgres: Backend) -> None:
    """However many there are: pages are counted."""
    await crowd(on_postgres)
    one = "died_at = now() + interval '1 hour', reason = 'odd' WHERE message_id = 'deadNULL7'"
    await on_postgres.change(f"UPDATE onefold_letter SET {one}")
    await on_postgres.change("ANALYZE onefold_letter")
    chosen = Filter(consumer="billing", reason="odd", since=datetime.now(UTC) + timedelta(minutes=30))
    for statement in (SQL.list_summaries(chosen.values(), "dead", 100), SQL.discard_some(chosen.values(), 0, 100)):
        [(told,)] = await on_postgres.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {render_item(statement)}")
        [plan] = json.loads(told)
        assert plan["Plan"]["Actual Rows"] == 1
        assert "onefold_letter_dead" in told
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 100, told


async def test_what_one_transaction_of_a_discard_has_passed_over_the_next_does_not_read_again(
    on_postgres: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many do not fit: entries of the index are counted."""
    await crowd(on_postgres)
    moved = "died_at = now() - ((20000 - version) * interval '1 second'), reason = 'r' || version % 2"
    await on_postgres.change(f"UPDATE onefold_letter SET {moved} WHERE state = 'dead'")
    await on_postgres.change("ANALYZE onefold_letter")
    monkeypatch.setattr(discard_and_skip, "DISCARD_BATCH", 500)
    read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'onefold_letter_dead'"
    await on_postgres.rows("SELECT pg_stat_force_next_flush()")
    [(before,)] = await on_postgres.rows(read)
    chosen = Filter(consumer="billing", reason="r1")
    assert await on_postgres.flow(discard_and_skip.discard_all("postgres", chosen, actor="ada")) == 10_000
    await on_postgres.rows("SELECT pg_stat_force_next_flush()")
    [(after,)] = await on_postgres.rows(read)
    # Each entry once: 20,000, as many of rows that the preparation replaced, and as many that it read and that are told
    # late. Where each transaction begins anew it is 155,000.
    assert 20_000 <= after - before < 100_000
    assert await on_postgres.rows("SELECT count(*) FROM onefold_letter WHERE state = 'dead'") == [(10_000,)]
