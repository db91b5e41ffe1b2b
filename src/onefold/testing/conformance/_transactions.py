"""Promises about transactions and savepoints. The name of each is the promise."""

from __future__ import annotations

from onefold._kernel.effects import Acquire, Batch, Boundary, Discard, Fetch, Nested, Release
from onefold.errors import SerializationFailed, TransactionAborted, TransactionEnded, UniqueViolated
from onefold.testing.conformance._stage import Stage, expect, fails, on_postgres, promise, refuses

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
SAVEPOINT = Boundary.SAVEPOINT
UNDO, KEEP = Boundary.ROLLBACK_TO_SAVEPOINT, Boundary.RELEASE_SAVEPOINT


@promise()
async def what_is_committed_is_there_for_others_and_before_that_it_is_not(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await stage.sees(1)
    await stage.others_see()
    await Batch((COMMIT,))
    await stage.others_see(1)


@promise()
async def a_rollback_undoes(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await Batch((ROLLBACK,))
    await stage.sees()
    await Batch((stage.insert(1),))  # neither the row nor its lock is left
    await stage.others_see(1)


@promise()
async def a_light_transaction_is_a_transaction(stage: Stage) -> None:
    await Acquire()
    await Batch((Boundary.BEGIN_LIGHT, stage.insert(1), ROLLBACK))
    await Batch((Boundary.BEGIN_LIGHT, stage.insert(2), COMMIT))
    await stage.others_see(2)


@promise()
async def a_savepoint_undoes_what_followed_it_only(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1), SAVEPOINT, stage.insert(2)))
    await Batch((UNDO, stage.insert(3)))
    await stage.sees(1, 3)
    await Batch((UNDO, stage.insert(4), COMMIT))
    await stage.others_see(1, 4)


@promise()
async def savepoints_nest_and_the_innermost_is_meant(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, SAVEPOINT, stage.insert(1)))
    await Batch((SAVEPOINT, stage.insert(2), UNDO, KEEP))
    await stage.sees(1)
    await Batch((SAVEPOINT, stage.insert(3), KEEP))
    await stage.sees(1, 3)
    await Batch((UNDO, stage.insert(4), COMMIT))
    await stage.others_see(4)


@promise()
async def each_of_the_handlers_savepoints_has_a_name_of_its_own(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1), SAVEPOINT, Nested(SAVEPOINT, 1), stage.insert(2)))
    await Batch((Nested(SAVEPOINT, 2), stage.insert(3)))  # and left open
    await Batch((Nested(UNDO, 1), Nested(KEEP, 1), stage.insert(4)))
    await stage.sees(1, 4)
    await Batch((Nested(SAVEPOINT, 3), stage.insert(5), Nested(SAVEPOINT, 4), stage.insert(6)))
    await Batch((Nested(KEEP, 3),))
    await refuses(Batch((Nested(KEEP, 4),)), TransactionEnded)
    await Batch((UNDO, Nested(SAVEPOINT, 5), stage.insert(7)))
    await Batch((KEEP, COMMIT))
    await stage.others_see(1, 7)


@promise()
async def a_savepoint_saves_a_transaction_from_an_error(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1), SAVEPOINT))
    await refuses(Batch((stage.insert(1),)), UniqueViolated)
    await Batch((UNDO, stage.insert(2), COMMIT))
    await stage.others_see(1, 2)


@promise()
async def a_plain_statement_commits_by_itself(stage: Stage) -> None:
    await Acquire()
    await Batch((stage.insert(1),))
    await stage.others_see(1)
    await refuses(Batch((stage.insert(1),)), UniqueViolated)
    await stage.sees(1)
    await Batch((stage.insert(2),))
    await stage.others_see(1, 2)


@promise()
async def a_plain_fetch_that_writes_commits_by_itself(stage: Stage) -> None:
    """Its rows are answered and its work stays: what was leased or deleted with RETURNING must not come back."""
    insert = stage.sql("INSERT INTO onefold_conformance (id, name) VALUES ($1::bigint, 'ours') RETURNING id", 1)
    await Acquire()
    rows = await Fetch(insert)
    expect(rows == [(1,)], f"it answered {rows}")
    await stage.others_see(1)
    await refuses(Fetch(insert), UniqueViolated)
    await stage.sees(1)
    await Fetch(stage.sql("DELETE FROM onefold_conformance RETURNING id"))
    await stage.others_see()
    await Release()
    await stage.others_see()


@promise()
async def a_fetch_that_writes_inside_a_transaction_commits_with_it(stage: Stage) -> None:
    insert = stage.sql("INSERT INTO onefold_conformance (id, name) VALUES ($1::bigint, 'ours') RETURNING id", 1)
    for end, left in ((ROLLBACK, ()), (COMMIT, (1,))):
        await Acquire()
        await Batch((BEGIN,))
        await Fetch(insert)
        await stage.others_see()
        await Batch((end,))
        await stage.others_see(*left)
        await Release()


@promise()
async def a_plain_read_leaves_nothing_open(stage: Stage) -> None:
    await Acquire()
    await stage.sees()

    async def change(other: Stage) -> None:
        # On Postgres this waits for transactions that have read the table and are still open.
        await Acquire()
        limit = (stage.sql("SET LOCAL lock_timeout = '2s'"),) if on_postgres(stage.subject) else ()
        add = stage.sql("ALTER TABLE onefold_conformance ADD COLUMN more text")
        await Batch((BEGIN, *limit, add, other.insert(1), COMMIT))
        await Release()

    await stage.elsewhere(change)
    await stage.sees(1)


@promise()
async def after_the_database_has_rolled_back_nothing_the_handler_does_is_kept(stage: Stage) -> None:
    clause = "" if on_postgres(stage.subject) else "OR ROLLBACK "
    await Acquire()
    await Batch((BEGIN, SAVEPOINT))
    await stage.user_inserts(1)
    clash = f"INSERT {clause}INTO onefold_conformance (id, name) VALUES (1, 'theirs')"
    await fails(stage.user(stage.subject.execute, clash))
    await fails(stage.user_inserts(2))
    await fails(stage.user_inserts(2))
    await refuses(Batch((stage.insert(3), COMMIT)), TransactionAborted, TransactionEnded)
    await Batch((ROLLBACK,))
    await stage.others_see()


@promise(on_postgres)
async def an_error_aborts_the_transaction(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await refuses(Batch((stage.insert(1),)), UniqueViolated)
    await refuses(Batch((stage.insert(2), COMMIT)), TransactionAborted)
    await refuses(Fetch(stage.sql("SELECT 1")), TransactionAborted)
    await Batch((ROLLBACK,))
    await stage.others_see()


@promise(on_postgres)
async def an_error_may_come_with_the_commit(stage: Stage) -> None:
    late = "ALTER TABLE onefold_conformance ADD CONSTRAINT late UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
    await Acquire()
    await Batch((stage.sql(late),))
    await refuses(Batch((BEGIN, stage.insert(1, 2), COMMIT)), UniqueViolated)
    await Batch((ROLLBACK,))
    await Batch((BEGIN, stage.insert(3), COMMIT))
    await stage.others_see(3)


@promise(on_postgres)
async def a_transaction_has_the_level_it_was_begun_at(stage: Stage) -> None:
    """Ours are READ COMMITTED whatever the default; those with statements of the user have what the user chose."""
    levels = {
        Boundary.BEGIN_AS_CHOSEN: "repeatable read",
        Boundary.BEGIN: "read committed",
        Boundary.BEGIN_SERIALIZABLE: "serializable",
        Boundary.BEGIN_LIGHT: "read committed",
        Boundary.BEGIN_REPEATABLE_READ: "repeatable read",
    }
    await Acquire()
    await Batch((stage.sql("SET default_transaction_isolation = 'repeatable read'"),))
    for _ in range(2):
        for begin, level in levels.items():
            await Batch((begin, stage.insert(1)))
            [(found,)] = await Fetch(stage.sql("SELECT current_setting('transaction_isolation')"))
            expect(found == level, f"the isolation level after {begin.value} is {found}")
            await Batch((ROLLBACK,))
    await Discard()
    for begin in levels:
        await Acquire()
        await Batch((begin, stage.insert(1)))
        await Batch((ROLLBACK,))
        await Release()  # as it came
        await Acquire()
        await Batch((Boundary.BEGIN_AS_CHOSEN,))
        [(found,)] = await Fetch(stage.sql("SELECT current_setting('transaction_isolation')"))
        expect(found == "read committed", f"the isolation level after {begin.value} and a release is {found}")
        await Batch((ROLLBACK,))
        await Release()


@promise(on_postgres)
async def what_cannot_be_serialised_says_so(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, stage.insert(1), COMMIT))
    await Batch((Boundary.BEGIN_REPEATABLE_READ, stage.sql("SELECT id FROM onefold_conformance")))

    async def change(other: Stage) -> None:
        await Acquire()
        await Batch((BEGIN, stage.sql("UPDATE onefold_conformance SET name = 'changed'"), COMMIT))
        await Release()

    await stage.elsewhere(change)
    await refuses(Batch((stage.sql("UPDATE onefold_conformance SET name = 'mine'"),)), SerializationFailed)
    await Batch((ROLLBACK,))


@promise()
async def a_transaction_is_one_at_every_level(stage: Stage) -> None:
    await Acquire()
    for begin in (Boundary.BEGIN_AS_CHOSEN, Boundary.BEGIN_REPEATABLE_READ, Boundary.BEGIN_SERIALIZABLE):
        await Batch((begin, stage.insert(1), ROLLBACK))
        await Batch((begin, stage.insert(1)))
        await stage.others_see()
        await Batch((COMMIT,))
        await stage.others_see(1)
        await Batch((stage.sql("DELETE FROM onefold_conformance"),))
