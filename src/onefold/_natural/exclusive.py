"""`exclusive`: a lock on a natural key, where there is no row yet that could be locked.

Theory of operation. The parts of the key, in their order, are hashed to 64 bits, as a claim's are. On Postgres it is an
advisory lock of the transaction; on SQLite a lock beside the database, and then the database's own write lock, which is
what guarantees it: see `sql/sqlite.py`. Both end with the transaction and not with the block, because what was done
under the lock can be seen by others only then.

The wait is bounded. On Postgres the server waits; a part that is undone alone keeps the transaction usable after a
refusal. Two transactions that take the same keys in another order each hold what the other wants: Postgres finds that
out and refuses one, SQLite ends the wait. Both say so.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from onefold._kernel.derive import Part, hash_parts
from onefold._kernel.effects import Batch, Boundary, Fetch, HandlerStatement, Nested, Now, Query, Sleep
from onefold._natural.sql.natural_dialect import NaturalDialect
from onefold.errors import KeyNotDerivable, SerializationFailed, StoreBusy

#: Keeps these locks apart from those of claims, and from other hashes of the same parts. It never changes: two releases
#: side by side lock each other out.
_PERSON: Final = b"onefold lock"

#: Between two looks, where the database cannot wait by itself: longer and longer.
_PAUSES_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


def lock_number(parts: tuple[Part, ...]) -> int:
    """64 bits for a key: two keys have the same with a chance of one in 2^64, and then wait for each other in vain."""
    if not parts:
        raise KeyNotDerivable(
            "tx.exclusive() needs at least one part: without any, every call would have the same lock"
        )
    hashed = hash_parts(parts, blake2b(digest_size=8, person=_PERSON), "tx.exclusive()")
    return int.from_bytes(hashed.digest(), "big", signed=True)


async def lock(
    sql: NaturalDialect, parts: tuple[Part, ...], number: int, wait_s: float, *, part: Callable[[], int], writing: bool
) -> None:
    """Have the lock with this number, within that time. `part` gives the number of a savepoint; `writing` says that
    the transaction has written, and so has SQLite's write lock already."""
    if sql.ONE_WRITER:
        if not writing:
            await _ask_again(sql, parts, number, wait_s)
        await Query(HandlerStatement("SELECT 1"))  # the transaction begins, with the write lock
        return
    [(had,)] = await Fetch(sql.try_lock(number))
    if not had:
        await _await(sql, parts, number, wait_s, part())


async def _await(sql: NaturalDialect, parts: tuple[Part, ...], number: int, wait_s: float, part: int) -> None:
    waiting = sql.await_lock(number, wait_s) if wait_s > 0 else None
    if waiting is None:
        raise _busy(parts, wait_s)
    await Batch((Nested(Boundary.SAVEPOINT, part),))
    try:
        await Fetch(waiting)
    except (StoreBusy, SerializationFailed) as error:
        await Batch((Nested(Boundary.ROLLBACK_TO_SAVEPOINT, part), Nested(Boundary.RELEASE_SAVEPOINT, part)))
        raise (_deadlock(parts) if isinstance(error, SerializationFailed) else _busy(parts, wait_s)) from error
    await Batch((Nested(Boundary.RELEASE_SAVEPOINT, part),))


async def _ask_again(sql: NaturalDialect, parts: tuple[Part, ...], number: int, wait_s: float) -> None:
    until = await Now() + wait_s
    tries = 0
    while True:
        [(had,)] = await Fetch(sql.try_lock(number))
        if had:
            return
        if await Now() >= until:
            raise _busy(parts, wait_s)
        await Sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
        tries += 1


def _busy(parts: tuple[Part, ...], wait_s: float) -> StoreBusy:
    return StoreBusy(
        f"tx.exclusive({_show(parts)}): another transaction has this key, and did not end within wait_s={wait_s:g}. A "
        "retry may have it. Transactions that take several keys take them in one order, or they wait for each other"
    )


def _deadlock(parts: tuple[Part, ...]) -> SerializationFailed:
    return SerializationFailed(
        f"tx.exclusive({_show(parts)}): a deadlock. Another transaction has this key and waits for something that this "
        "one has. Roll back and retry; take several keys in one order everywhere, as by sorted()"
    )


def _show(parts: tuple[Part, ...]) -> str:
    return ", ".join(f"{part!r:.40}" for part in parts)
