"""Promises about transactions and savepoints. The name of each is the promise."""

from __future__ import annotations

from onefold._kernel.effects import Acquire, Batch, Boundary, Fetch, Release
from onefold.errors import TransactionAborted, UniqueViolated
from onefold.testing.conformance.stage import Stage, expect, on_postgres, promise, refuses

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
async def a_plain_read_leaves_nothing_open(stage: Stage) -> None:
    await Acquire()
    await stage.sees()

    async def change(other: Stage) -> None:
        # On Postgres this waits for whoever has only read the table, if their transaction is still open.
        await Acquire()
        limit = (stage.sql("SET LOCAL lock_timeout = '2s'"),) if on_postgres(stage.subject) else ()
        add = stage.sql("ALTER TABLE onefold_conformance ADD COLUMN more text")
        await Batch((BEGIN, *limit, add, other.insert(1), COMMIT))
        await Release()

    await stage.elsewhere(change)
    await stage.sees(1)


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
async def a_transaction_reads_what_was_committed_meanwhile(stage: Stage) -> None:
    """READ COMMITTED whatever the default: claiming needs a snapshot per statement."""
    await Acquire()
    await Batch((BEGIN,))
    [(level,)] = await Fetch(stage.sql("SELECT current_setting('transaction_isolation')"))
    expect(level == "read committed", f"the isolation level is {level}")
