"""Failed messages: not handled, and no longer at the broker. Starting those that are due, and listing them.

A failed message is started before it is run, in a transaction of its own, so that one that kills its process is known
by being started more often than it failed; so is one whose handler lost its connection to the database. Such suspects
are started one at a time: a process that dies with several at hand would make all of them suspects.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from onefold._inbox.catching_up import RUN_MAX, put_back
from onefold._inbox.consumer import Consumer
from onefold._inbox.delivery_reading import reread
from onefold._inbox.handling import Inbox
from onefold._inbox.handling_log import log_failure
from onefold._inbox.message_identity import Identity
from onefold._inbox.others_topics import LOOK_S, Sifted, dropped_problem
from onefold._inbox.redrive import Filter
from onefold._inbox.sql import STATEMENTS
from onefold._inbox.stored_message import FailedMessage, StoredMessage, stored_from_row, stream_position, write_held
from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Batch, Boundary, Fetch
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import DeadLettered
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

DEATHS_MAX: Final = 3
#: How often one `take` begins anew because it met nothing but messages of others, and how many it looks at then.
TAKES_MAX: Final = 20
AMONG_OTHERS: Final = 100
LISTED_MAX: Final = 1000

_KILLER: Final = (
    f"it was being handled when a process, or its connection to the database, died, {DEATHS_MAX} times; its handler "
    "may be what kills it"
)

#: How many of a row's columns are the message.
_CONTENT: Final = 11


@dataclass(frozen=True, slots=True)
class Tally:
    """How many failed messages there are."""

    consumer: str
    topic: str | None
    state: str
    failed_messages: int


async def next_due(inbox: Inbox) -> float | None:
    """In how many seconds the next failed message is due; None: there is none. A read that locks nothing."""

    async def work() -> float | None:
        rows = await Fetch(inbox.sql.next_due(inbox.consumer.name, inbox.others.as_json()))
        return float(rows[0][0]) / 1000 if rows else None

    return await with_connection(work)


async def take(
    inbox: Inbox, limit: int, *, suspects: bool = False, listener: Listener | None = None
) -> list[FailedMessage]:
    """Start failed messages that are due; no other process gets them until their lease is over."""
    sql, consumer = inbox.sql, inbox.consumer
    # Twice the lease: it must not run out before the transaction that it allows for.
    lease_ms = 2 * milliseconds(consumer.lease_s)

    async def work() -> tuple[list[Any], list[FailedMessage]]:
        killed: list[Any] = []
        size = limit
        for _ in range(TAKES_MAX):
            await Batch((Boundary.BEGIN, *sql.opening(lease_ms)))
            if suspects:
                killed += await Fetch(sql.kill_suspects(consumer.name, _KILLER, DEATHS_MAX))
            rows = await Fetch(sql.take(consumer.name, lease_ms, size, inbox.others.as_json(), suspects=suspects))
            # As they were kept: what was not read then is named by those whose it is.
            ours, others, dropped = await inbox.others.sift_started(sql, [read_row(*row) for row in rows])
            found = [
                *(_reread(consumer, each) for each in ours),
                *(replace(each, problem=dropped_problem(consumer.name)) for each in dropped),
            ]
            back = ((others, milliseconds(LOOK_S)), (found[limit:], 0))
            given_back = [
                sql.in_hand.give_back(consumer.name, write_held(these), due_ms) for these, due_ms in back if these
            ]
            await Batch((*given_back, Boundary.COMMIT))
            if found or not others:
                return killed, found[:limit]
            size = max(limit, AMONG_OTHERS)
        return killed, []

    killed, started = await with_connection(work)
    for topic, message_id in killed:
        event = DeadLettered(consumer.name, topic or "?", _KILLER, message_id)
        log_failure(event, consumer.attempts)
        emit(listener, event)
    return _hold(inbox, started)


async def take_run(inbox: Inbox, last: StoredMessage) -> list[FailedMessage]:
    """Start the failed messages that come next in the stream of the one that was handled last, as far as there is no
    gap."""
    stream, epoch, version = stream_position(last)
    statement = inbox.sql.runs.take(inbox.consumer.name, stream, epoch, version, 2 * inbox.lease_ms, RUN_MAX)

    async def work() -> Sifted[FailedMessage]:
        return await inbox.others.sift_started(inbox.sql, [read_row(*row) for row in await Fetch(statement)])

    # A stream is of one type of message, and that may be sent to several topics.
    ours, others, dropped = await with_connection(work)
    if others or dropped:
        await put_back(inbox, [*ours, *others, *dropped])
        return []
    return _hold(inbox, ours)


async def list_failed(
    dialect: str,
    consumer: str,
    *,
    state: Literal["waiting", "dead"] | None = None,
    topic: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> list[FailedMessage]:
    """Failed messages in the order of their ids, from behind `after` on."""
    if not 1 <= limit <= LISTED_MAX:
        raise ConfigurationError(f"limit={limit} must be between 1 and {LISTED_MAX}")

    async def work() -> list[FailedMessage]:
        return [
            read_row(*row) for row in await Fetch(STATEMENTS[dialect].list_failed(consumer, state, topic, after, limit))
        ]

    return await with_connection(work)


async def list_summaries(
    dialect: str, chosen: Filter, *, state: Literal["waiting", "dead"] | None = "dead", limit: int = 100
) -> list[FailedMessage]:
    """Those that fit, without data and history: dead letters in the order they died, else in that of their ids."""
    require("limit", limit, least=1, most=100_000)

    async def work() -> list[FailedMessage]:
        return [
            read_row(*row) for row in await Fetch(STATEMENTS[dialect].list_summaries(chosen.values(), state, limit))
        ]

    return await with_connection(work)


async def count_failed(dialect: str) -> list[Tally]:
    """How many failed messages there are, by consumer, topic and state."""

    async def work() -> list[Tally]:
        return [Tally(*row) for row in await Fetch(STATEMENTS[dialect].counts())]

    return await with_connection(work)


async def measure_failed(dialect: str, consumer: str, count_max: int) -> tuple[int, int, int]:
    """How many failed messages of a consumer wait for an attempt, are parked, and are dead; each at most so many."""

    async def work() -> tuple[int, int, int]:
        [(waiting, parked, dead)] = await Fetch(STATEMENTS[dialect].count_some(consumer, count_max))
        return waiting, parked, dead

    return await with_connection(work)


def read_row(*row: Any) -> FailedMessage:
    stored = stored_from_row(*row[:_CONTENT])
    started, failed, history, state, reason, created_ms, due_in_ms, died_ms, redrive = row[_CONTENT:]
    return FailedMessage(
        id=stored.id,
        headers=stored.headers,
        data=stored.data,
        message=stored.message,
        problem=stored.problem,
        origin=stored.origin,
        row_id=stored.id,
        state=state,
        reason=reason,
        started=started,
        failed=failed,
        history_json=history,
        created_ms=created_ms,
        due_in_s=None if due_in_ms is None else due_in_ms / 1000,
        died_ms=died_ms,
        redrive=redrive,
    )


def _reread(consumer: Consumer, failed_message: FailedMessage) -> FailedMessage:
    """What could not be read when it came is read again for its consumer, which may know more by now."""
    if failed_message.message is not None:
        return failed_message
    stored = reread(consumer, failed_message)
    return replace(failed_message, id=stored.id, message=stored.message, problem=stored.problem, origin=stored.origin)


def _hold(inbox: Inbox, failed_messages: list[FailedMessage]) -> list[FailedMessage]:
    inbox.in_hand.hold(failed_messages)
    return sorted(failed_messages, key=_in_order)  # RETURNING keeps no order


def _in_order(failed_message: FailedMessage) -> tuple[bytes, int, int]:
    message = failed_message.message
    if message is None:
        return b"", 0, 0
    return failed_message.stream or b"", message.epoch or 0, message.version or 0


async def kept_names(dialect: str, consumer: str, who: Identity) -> tuple[str, ...]:
    """The ids of the failed messages that are of this message."""
    rows = await with_connection(functools.partial(fetch_rows, STATEMENTS[dialect].stepped.kept(consumer, who)))
    return tuple(name for (name,) in rows)
