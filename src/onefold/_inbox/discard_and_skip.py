"""What people do with failed messages that are not tried again: discard some, skip one, go on after a gap. Each leaves
a line in the audit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from onefold._inbox.message_identity import identity_of
from onefold._inbox.redrive import IDS_MAX, FailedMessageNotFit, Filter
from onefold._inbox.sql import STATEMENTS
from onefold._kernel.audit import check_actor, with_why
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Row, Statement
from onefold.errors import ConfigurationError

#: Dead letters that one transaction discards.
DISCARD_BATCH: Final = 1000

#: What is to be deleted along with a message, of this consumer, source and id, that was given up.
Forgets: TypeAlias = Callable[[str, str, str], tuple[Statement, ...]]


def forget_nothing(consumer: str, source: str, message_id: str) -> tuple[Statement, ...]:
    """For consumers that have nothing but the message."""
    return ()


async def discard(
    dialect: str,
    consumer: str,
    ids: tuple[str, ...],
    *,
    actor: str,
    force: bool = False,
    why: str = "",
    forget: Forgets = forget_nothing,
) -> int:
    """Delete dead letters for good; how many. Waiting ones only with `force`."""
    check_actor(actor)
    if len(ids) > IDS_MAX:
        raise ConfigurationError(f"{len(ids)} ids are too many at once, at most {IDS_MAX}")
    statement = STATEMENTS[dialect].discard(consumer, json.dumps(ids), force=force)
    return len(await _discard(dialect, consumer, statement, actor, with_why({"force": force}, why), forget))


async def discard_all(
    dialect: str, chosen: Filter, *, actor: str, why: str = "", forget: Forgets = forget_nothing
) -> int:
    """Delete all dead letters that fit, some in each transaction; how many."""
    check_actor(actor)
    details = with_why({"filter": chosen.to_json()}, why)
    total = since = 0
    while True:
        # From where the transaction before has come to: what did not fit up to there is not read once more.
        statement = STATEMENTS[dialect].discard_some(chosen.values(), since, DISCARD_BATCH)
        deleted = await _discard(dialect, chosen.consumer, statement, actor, details, forget)
        total += len(deleted)
        if len(deleted) < DISCARD_BATCH:
            return total
        since = max(died_at for *_, died_at in deleted)


async def _discard(
    dialect: str, consumer: str, statement: Statement, actor: str, details: Mapping[str, Any], forget: Forgets
) -> list[Row]:
    """Delete in one transaction, with a line in the audit if there was anything. The deleted rows."""
    sql = STATEMENTS[dialect]

    async def work() -> list[Row]:
        await Batch((Boundary.BEGIN,))
        deleted = await Fetch(statement)
        streams = sorted({bytes(stream) for _, _, stream, *_ in deleted if stream is not None})
        # The message behind one of them looks again for its turn, which it may not have: giving it that is `skip`.
        wakes = [sql.wake_first(consumer, stream) for stream in streams]
        failed_messages = [{"id": name, "topic": topic} for name, topic, *_ in deleted]
        works = [
            statement
            for name, _, _, source, envelope, _ in deleted
            if source is not None
            for statement in forget(consumer, source, json.loads(envelope).get("id", name))
        ]
        audit = sql.audit(actor, "discard", consumer, json.dumps({**details, "failed_messages": failed_messages}))
        await Batch((*wakes, *works, *((audit,) if deleted else ()), Boundary.COMMIT))
        return deleted

    return await with_connection(work)


async def skip(dialect: str, consumer: str, message_id: str, *, actor: str, why: str = "") -> None:
    """Go on in a strict stream without the dead letter at its head. It stays a dead letter, with the name of the person
    who skipped it."""
    await _move(dialect, consumer, message_id, actor=actor, action="skip", why=why)


async def resume_at(dialect: str, consumer: str, message_id: str, *, actor: str, why: str = "") -> None:
    """Go on in a strict stream with this waiting failed message: what is missing before it is given up."""
    await _move(dialect, consumer, message_id, actor=actor, action="resume", why=why)


async def _move(dialect: str, consumer: str, message_id: str, *, actor: str, action: str, why: str) -> None:
    check_actor(actor)
    sql = STATEMENTS[dialect]

    async def work() -> str | None:
        await Batch((Boundary.BEGIN,))
        # A stream is locked before its messages, everywhere. Which one it is stands in the message's row: that is read
        # first, in a transaction of its own.
        found = await _stream_of(sql.failed_message(consumer, message_id), message_id)
        if isinstance(found, str):
            await Batch((Boundary.ROLLBACK,))
            return found
        state, stream, epoch, version, details = found
        await Batch(
            (Boundary.ROLLBACK, Boundary.BEGIN, sql.ensure(consumer, stream, epoch), sql.lock(consumer, stream))
        )
        by_name = identity_of(message_id, None)
        [(at_epoch, at_version, _, smallest, _, still, _)] = await Fetch(sql.look(consumer, stream, epoch, by_name))
        head = epoch == at_epoch and (
            version == at_version + 1 if at_version else smallest is None or version <= smallest
        )
        if action == "skip":
            wrong = None if state == "dead" and head else "is not a dead letter at the head of its stream"
            steps: tuple[Statement, ...] = (
                sql.advance(consumer, stream, epoch, version),
                sql.mark(consumer, message_id, f"skipped by {actor}"),
                sql.wake(consumer, stream, epoch, version + 1),
            )
        else:
            ahead = (epoch, version) > (at_epoch, at_version)
            wrong = None if state == "waiting" and ahead else "is not a waiting message ahead of its stream"
            steps = (
                sql.advance(consumer, stream, epoch, version - 1),
                sql.wake(consumer, stream, epoch, version),
            )
        if wrong is not None or not still:
            await Batch((Boundary.ROLLBACK,))
            return (
                f"failed message {message_id!r} of consumer {consumer!r} {wrong or 'is gone'}: it is {state}, epoch "
                f"{epoch}, version {version}; its stream stands at epoch {at_epoch}, version {at_version}"
            )
        await Batch((*steps, sql.audit(actor, action, consumer, json.dumps(with_why(details, why))), Boundary.COMMIT))
        return None

    wrong = await with_connection(work)
    if wrong is not None:
        raise FailedMessageNotFit(wrong)


async def _stream_of(statement: Statement, message_id: str) -> tuple[str, bytes, int, int, dict[str, Any]] | str:
    rows: list[Row] = await Fetch(statement)
    if not rows:
        return f"there is no failed message {message_id!r}"
    state, topic, key, stream, epoch, version = rows[0]
    if stream is None or version is None:
        return f"failed message {message_id!r} has no key and version, so nothing waits behind it"
    details = {"id": message_id, "topic": topic, "key": key, "epoch": epoch, "version": version}
    return state, bytes(stream), epoch, version, details
