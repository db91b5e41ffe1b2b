"""Promises about batches, their errors and their values. The name of each is the promise."""

from __future__ import annotations

from onefold._kernel.effects import Acquire, Batch, BatchItem, Boundary, Fetch, Value
from onefold.errors import (
    RequiredValueMissing,
    SchemaMissing,
    StatementRefused,
    TransactionEnded,
    UniqueViolated,
)
from onefold.testing.conformance._stage import Stage, expect, promise, refuses

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
SAVEPOINT = Boundary.SAVEPOINT
UNDO, KEEP = Boundary.ROLLBACK_TO_SAVEPOINT, Boundary.RELEASE_SAVEPOINT

TEXTS = (
    "",
    "plain",
    "  spaces  ",
    "'",
    "ends with a backslash \\",
    "it's \"quoted\" ''",
    "back\\slash \\\\ \\' \\x41 \\u0041",
    "$1 ?1 :p1 %s %(p1)s {} ::text",
    "; DROP TABLE onefold_conformance; --",
    "two\nlines\r\n\ttab",
    "naïve Ωmega 漢字 🙂 \u200b\ufeff",
)
INTEGERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
BLOBS = (b"", b"\x00", bytes(range(256)), b"'\\x00'", b"x" * 1_000_000)


@promise()
async def a_batch_answers_with_the_row_count_of_its_last_step(stage: Stage) -> None:
    rename = "UPDATE onefold_conformance SET name = 'new' WHERE id > $1::bigint"
    counts: dict[int, tuple[BatchItem, ...]] = {
        3: (BEGIN, stage.insert(1, 2, 3)),
        2: (stage.insert(4), stage.sql(rename, 2)),
        0: (stage.insert(5), stage.sql(rename, 99)),
        1: (stage.sql("SELECT id FROM onefold_conformance WHERE id = $1::bigint", 1),),
        5: (stage.sql("DELETE FROM onefold_conformance"),),
    }
    await Acquire()
    for count, items in counts.items():
        found = await Batch(items)
        expect(found == count, f"{items} answered {found}, not {count}")
    for items in ((SAVEPOINT,), (stage.insert(6), SAVEPOINT), (stage.insert(7), UNDO), (stage.insert(8), COMMIT)):
        found = await Batch(items)
        expect(found == 0, f"{items} end with a boundary, but answered {found}")


@promise()
async def a_batch_stops_at_its_first_error(stage: Stage) -> None:
    await Acquire()
    await refuses(Batch((BEGIN, stage.insert(1), stage.insert(1), stage.insert(2), COMMIT)), UniqueViolated)
    await Batch((ROLLBACK,))
    await stage.others_see()


@promise()
async def a_transaction_may_end_and_another_begin_in_one_batch(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await Batch((ROLLBACK, BEGIN, stage.insert(2)))
    await Batch((stage.insert(3), COMMIT, BEGIN, stage.insert(4)))
    await Batch((ROLLBACK,))
    await stage.others_see(2, 3)


@promise()
async def begin_inside_a_transaction_goes_on_with_it(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await Batch((BEGIN, stage.insert(2), ROLLBACK))
    await stage.others_see()


@promise()
async def ending_a_transaction_that_is_not_there_is_harmless(stage: Stage) -> None:
    await Acquire()
    await Batch((COMMIT,))
    await Batch((ROLLBACK,))
    await Batch((stage.insert(1),))
    await stage.others_see(1)


@promise()
async def errors_have_the_classes_of_onefold(stage: Stage) -> None:
    wrong = (
        (stage.insert(1, 1), UniqueViolated),
        (stage.insert(1, name=None), RequiredValueMissing),
        (stage.sql("SELECT * FROM onefold_not_there"), SchemaMissing),
        (stage.sql("INSERT INTO onefold_conformance (id, missing) VALUES (1, 1)"), SchemaMissing),
        (stage.sql("SELECT missing FROM onefold_conformance"), SchemaMissing),
        (stage.sql("SELEC 1"), StatementRefused),
        (stage.sql("SELECT $1::text", "half a character: \ud83d"), StatementRefused),
        (stage.sql("SELECT $1::bigint", 2**64), StatementRefused),
    )
    await Acquire()
    for statement, kind in wrong:
        for effect in (Batch((statement,)), Batch((BEGIN, statement, COMMIT)), Fetch(statement)):
            await refuses(effect, kind)
            await Batch((ROLLBACK,))
    await refuses(Batch((stage.insert(1, 1),)), UniqueViolated)
    await stage.others_see()


@promise()
async def a_query_answers_with_rows_and_their_names_in_the_transaction_of_the_handler(stage: Stage) -> None:
    insert = "INSERT INTO onefold_conformance (id, name) VALUES ($1::bigint, $2::text) RETURNING name AS said, id"
    await Acquire()
    if not stage.can_query:
        return
    await Batch((BEGIN,))
    columns, rows = await stage.query(insert, 1, "ours")
    expect((columns, rows) == (("said", "id"), [("ours", 1)]), f"a query answered {columns!r} and {rows!r}")
    expect(all(type(row) is tuple for row in rows), f"a query answered rows that are no tuples: {rows!r}")
    _, rows = await stage.query("UPDATE onefold_conformance SET name = 'new' WHERE id = $1::bigint RETURNING id", 9)
    expect(rows == [], f"a query without rows answered {rows!r}")
    await stage.sees(1)
    await stage.others_see()
    await Batch((COMMIT, BEGIN))
    await refuses(stage.query(insert, 1, "again"), UniqueViolated)
    await Batch((ROLLBACK, BEGIN))
    await refuses(stage.query("SELECT 1 FROM onefold_not_there"), SchemaMissing)
    await Batch((ROLLBACK, BEGIN))
    await stage.query(insert, 2, "undone")
    await Batch((ROLLBACK,))
    await stage.others_see(1)


@promise()
async def there_is_no_savepoint_to_go_back_to_unless_one_was_made(stage: Stage) -> None:
    await Acquire()
    for items in ((UNDO,), (KEEP,), (BEGIN, UNDO), (BEGIN, SAVEPOINT, KEEP, UNDO)):
        await refuses(Batch(items), TransactionEnded)
        await Batch((ROLLBACK,))


@promise()
async def signs_in_a_statement_that_other_drivers_use_for_values_mean_themselves(stage: Stage) -> None:
    await Acquire()
    select = stage.sql("SELECT ':name', '12:30:x', '100%', '%s {0}', $1::text", ":name")
    [row] = await Fetch(select)
    expect(row == (":name", "12:30:x", "100%", "%s {0}", ":name"), f"they came back as {row}")
    insert = stage.sql("INSERT INTO onefold_conformance (id, name) VALUES ($1::bigint, ':name 100%')", 1)
    await Batch((insert,))
    [(name,)] = await Fetch(stage.sql("SELECT name FROM onefold_conformance"))
    expect(name == ":name 100%", f"it is stored as {name!r}")


@promise()
async def values_come_back_as_they_went(stage: Stage) -> None:
    asked: list[tuple[str, Value]] = [("text", text) for text in TEXTS]
    asked += [("bigint", integer) for integer in INTEGERS] + [("bytea", blob) for blob in BLOBS]
    asked += [("text", None), ("bigint", None), ("bytea", None)]
    await Acquire()
    for kind, value in asked:
        [row] = await Fetch(stage.sql(f"SELECT $1::{kind}, $1::{kind}", value))
        expect(type(row) is tuple and row == (value, value), f"{value!r:.60} came back as {row!r:.60}")


@promise()
async def values_are_stored_by_a_batch_as_they_are(stage: Stage) -> None:
    insert = "INSERT INTO onefold_conformance (id, name, data) VALUES ($1::bigint, $2::text, $3::bytea)"
    rows: list[tuple[int, str, bytes | None]] = [(integer, "integer", None) for integer in INTEGERS]
    rows += [(100 + number, text, text.encode()) for number, text in enumerate(TEXTS)]
    rows += [(200 + number, "blob", blob) for number, blob in enumerate(BLOBS)]
    await Acquire()
    await Batch((BEGIN, *(stage.sql(insert, *row) for row in rows), COMMIT))
    found = await Fetch(stage.sql("SELECT id, name, data FROM onefold_conformance ORDER BY id"))
    for there, row in zip(found, sorted(rows), strict=True):
        expect(there == row, f"{row!r:.80} is stored as {there!r:.80}")
