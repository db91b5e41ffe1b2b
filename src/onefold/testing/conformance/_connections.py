"""Promises about the handle and about connections. The name of each is the promise."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from onefold._kernel.effects import Acquire, Batch, Boundary, Call, Discard, Fetch, Release
from onefold.errors import ConnectionLost, StoreUnavailable, TransactionEnded, TransactionMisused
from onefold.testing.conformance._stage import Stage, expect, fails, holding, on_postgres, promise, refuses

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
SAVEPOINT = Boundary.SAVEPOINT
UNDO, KEEP = Boundary.ROLLBACK_TO_SAVEPOINT, Boundary.RELEASE_SAVEPOINT

#: More often than any pool under test has connections: what loses one each time runs dry.
OFTEN = 12

#: How many statements may find a connection of before the outage, in every pool under test.
TRIES = 8


@promise()
async def the_handle_is_in_the_same_transaction(stage: Stage) -> None:
    for end, left in ((ROLLBACK, ()), (COMMIT, (1, 2))):
        await Acquire()
        await Batch((BEGIN, stage.insert(1)))
        await stage.user_inserts(2)
        await stage.sees(1, 2)
        await stage.others_see()
        await Batch((end,))
        await stage.others_see(*left)
        await Release()


@promise()
async def a_handle_that_is_kept_is_refused_once_its_transaction_is_over(stage: Stage) -> None:
    kept: list[Any] = []
    write = "INSERT INTO onefold_conformance (id, name) VALUES (9, 'late')"
    for end in (COMMIT, ROLLBACK):
        await Acquire()
        await Batch((BEGIN, stage.insert(1)))
        await stage.user(kept.append)
        await stage.user_inserts(2)
        await Batch((end,))
        await Release()
        late = Call(lambda: stage.subject.execute(kept[-1], write))
        await fails(late)  # between two transactions
        await Acquire()
        await Batch((BEGIN, stage.insert(3)))
        await fails(late)  # in another transaction
        await Batch((COMMIT,))
        await stage.others_see(*((1, 2, 3) if end is COMMIT else (3,)))
        await Batch((stage.sql("DELETE FROM onefold_conformance"),))
        await Release()


@promise()
async def our_savepoints_hold_for_the_handle_too(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, SAVEPOINT))
    await stage.user_inserts(1)
    await Batch((SAVEPOINT,))
    await stage.user_inserts(2)
    await Batch((UNDO, KEEP))
    await stage.user_inserts(3)
    await stage.sees(1, 3)
    await Batch((UNDO, stage.insert(4), COMMIT))
    await stage.others_see(4)


@promise()
async def a_nested_transaction_of_the_handle_is_a_savepoint(stage: Stage) -> None:
    insert = "INSERT INTO onefold_conformance (id, name) VALUES ({}, 'theirs')"
    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await stage.user(stage.subject.nested, insert.format(2), False)
    await stage.user(stage.subject.nested, insert.format(3), True)
    await stage.user_inserts(4)
    await stage.others_see()
    await Batch((COMMIT,))
    await stage.others_see(1, 2, 4)


@promise()
async def a_commit_by_the_handler_is_found_out(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN, SAVEPOINT))
    await stage.user_inserts(1)
    with suppress(Exception):
        await stage.user(stage.subject.commit)
    await refuses(Batch((UNDO, stage.insert(2), COMMIT)), TransactionEnded, TransactionMisused)
    await Discard()
    await Acquire()
    await Batch((BEGIN, stage.insert(3), COMMIT))


@promise()
async def after_a_commit_by_the_handler_a_rollback_clears_the_way(stage: Stage) -> None:
    await Acquire()
    await Batch((BEGIN,))
    await stage.user_inserts(1)
    with suppress(Exception):
        await stage.user(stage.subject.commit)
    await Batch((ROLLBACK, BEGIN, stage.insert(2), COMMIT))
    await Release()


@promise()
async def many_may_start_at_once(stage: Stage) -> None:
    async def one(other: Stage, id_: int) -> None:
        await Acquire()
        await Batch((BEGIN, other.insert(id_)))
        await Batch((COMMIT,))
        await Release()

    await stage.elsewhere(*(lambda other, id_=id_: one(other, id_) for id_ in range(OFTEN)))
    await stage.others_see(*range(OFTEN))


@promise()
async def a_discarded_connection_is_rolled_back_and_replaced(stage: Stage) -> None:
    for _ in range(OFTEN):
        await Acquire()
        await Batch((BEGIN, stage.insert(1)))
        await stage.user_inserts(2)
        await Discard()
    await stage.others_see()
    await Acquire()
    await Batch((BEGIN, stage.insert(1, 2), COMMIT))


@promise(on_postgres)
async def a_discarded_connection_is_not_used_again(stage: Stage) -> None:
    session = Fetch(stage.sql("SELECT pg_backend_pid()"))
    seen = []
    for _ in range(OFTEN):
        await Acquire()
        seen += await session
        await Discard()
    expect(len(set(seen)) == OFTEN, f"of {OFTEN} discarded sessions some were seen again: {seen}")


@promise()
async def a_released_connection_leaves_nothing_open(stage: Stage) -> None:
    for _ in range(OFTEN):
        await Acquire()
        await Batch((BEGIN, stage.insert(1)))
        await stage.user_inserts(2)
        await Release()
    await stage.others_see()
    await Acquire()
    await Batch((stage.insert(1),))
    await stage.others_see(1)


@promise(lambda subject: subject.connections_max is not None)
async def an_exhausted_pool_is_said_to_be_unavailable(stage: Stage) -> None:
    async def one_too_many(other: Stage) -> None:
        await other.elsewhere(refused)

    async def refused(other: Stage) -> None:
        await refuses(Acquire(), StoreUnavailable)

    async def fine(other: Stage) -> None:
        await other.sees()

    count = stage.subject.connections_max or 0
    await stage.elsewhere(lambda other: holding(other, count, one_too_many))
    await stage.elsewhere(lambda other: holding(other, count, fine))


@promise(on_postgres)
async def a_session_that_the_server_ends_is_lost_and_replaced(stage: Stage) -> None:
    async def terminate(other: Stage) -> None:
        await Acquire()
        await Fetch(other.sql("SELECT pg_terminate_backend($1::int, 10000)", pid))
        await Release()

    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await stage.user_inserts(2)
    [(pid,)] = await Fetch(stage.sql("SELECT pg_backend_pid()"))
    await stage.elsewhere(terminate)
    with suppress(Exception):  # whatever the driver says to the handler
        await stage.user_inserts(3)
    await refuses(Batch((stage.insert(4), COMMIT)), ConnectionLost)
    await refuses(Batch((ROLLBACK,)), ConnectionLost)
    await Discard()
    await Acquire()
    await Batch((BEGIN, stage.insert(1), COMMIT))
    await stage.others_see(1)


@promise(lambda subject: subject.outage is not None)
async def a_server_that_dies_and_returns_is_lost_and_found(stage: Stage) -> None:
    outage: Any = stage.subject.outage
    await Acquire()
    await Batch((BEGIN, stage.insert(1)))
    await Call(outage.kill)
    try:
        await refuses(Batch((stage.insert(2), COMMIT)), ConnectionLost)
        await Discard()
        await refuses(Acquire(), StoreUnavailable)
    finally:
        await Call(outage.restart)
    for _ in range(TRIES):
        try:
            await Acquire()
            await stage.sees()
        except StoreUnavailable:
            await Discard()
        else:
            return
    expect(False, f"{TRIES} tries after the server came back, there is still no connection to it")
