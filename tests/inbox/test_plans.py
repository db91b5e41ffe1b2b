"""The statements that run all the time find their rows by an index, however many letters are dead or parked."""

from __future__ import annotations

from onefold.db.postgres import rendered
from onefold.inbox.sql import STATEMENTS
from tests.inbox.worlds import World

SQL = STATEMENTS["postgres"]
STREAM = b"s" * 16


async def crowd(world: World) -> None:
    for state, due, count in (("dead", "NULL", 20_000), ("waiting", "NULL", 20_000), ("waiting", "now()", 20)):
        await world.change(
            "INSERT INTO onefold_letter (consumer, message_id, state, headers, data, envelope, stream, epoch, version, "
            "reason, started, failed, history, due_at, died_at) "
            f"SELECT 'billing', '{state}{due}' || n, '{state}', '{{}}', '', '{{}}', "
            f"decode(md5(n::text), 'hex'), 1, n, '', 0, 0, '[]', {due}, now() FROM generate_series(1, {count}) AS n"
        )
    await world.change("INSERT INTO onefold_inbox SELECT 'billing', 'm' || n FROM generate_series(1, 20000) AS n")
    await world.change("ANALYZE onefold_letter")
    await world.change("ANALYZE onefold_inbox")


PLANS = [
    (SQL.claim("none", "billing", "m7", None, kept=False), "onefold_letter_pkey"),
    (SQL.next_due("billing"), "onefold_letter_due"),
    (SQL.take("billing", 1000, 4, suspects=False), "onefold_letter_due"),
    (SQL.take("billing", 1000, 1, suspects=True), "onefold_letter_due"),
    (SQL.bury("billing", "", 3), "onefold_letter_due"),
    (SQL.wake("billing", STREAM, 1, 7), "onefold_letter_stream"),
    (SQL.look("billing", STREAM, 1, "m7"), "onefold_letter_stream"),
    (SQL.reap("billing", 1000, 10), "onefold_inbox_handled_at"),
    (SQL.claim_many("billing", '["m7", "m8"]'), "onefold_letter_pkey"),
]


async def test_no_statement_reads_a_whole_table(on_postgres: World) -> None:
    await crowd(on_postgres)
    for statement, index in PLANS:
        plan = "\n".join(line for (line,) in await on_postgres.rows(f"EXPLAIN {rendered(statement)}"))
        assert index in plan, plan
        assert "Seq Scan on onefold_letter" not in plan, plan
        assert "Seq Scan on onefold_inbox" not in plan, plan
