"""The processes of a consumer, and the topics that it wants because of them.

Theory of operation. Each process of a consumer has a row: its topics, when it started, when it was last seen. A topic
is wanted while a process that is alive has it, or the one that was started last. So in a rolling deployment, where old
and new run side by side, neither takes a topic from the other: one that the new release has added is wanted from its
first start on, also if that process dies; one that it has dropped goes with the last process of the old release. What
is no longer wanted is `former`: it is unsubscribed, and what still comes of it is kept as dead letters. Topics may be
patterns, which are kept and given up as they are written; a message is wanted if any of them matches.

An outage of the database makes all processes look dead until their next beat, and one may be the first that finds the
database again. So while a process cannot tell (it was not seen alive itself, or has been for less than `ALIVE_S`), it
counts all as alive that did not say that they end: a topic is given up too late rather than too early, since what is
given up makes dead letters.

Which process gets a message is the broker's choice, which knows one set of topics for all of them. One that gets a
message of a topic that only others have keeps it for those: see `others_topics.py`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from onefold._inbox.sql import STATEMENTS
from onefold._inbox.sql.registry import RegistryStatements
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from onefold._kernel.topics import matches_any

#: How often a process renews its row, and after how long without that it counts as dead.
BEAT_S: Final = 20.0
ALIVE_S: Final = 65.0
#: How long a process that has ended may be about to start again: what is sent to its topics waits for so long.
RESTART_S: Final = ALIVE_S
#: Stands for the processes of releases that did not register, and for how long they count as running from the first
#: that does: a rolling deployment is over by then. Sorts before any other: it was started before them.
EARLIER: Final = "-"
EARLIER_S: Final = 86_400.0
#: For how long it is remembered that a consumer had a topic: what was sent to it then may still lie at the broker.
FORMER_S: Final = 30 * 86_400.0
#: Rows of a consumer that is removed, deleted by one transaction.
AT_ONCE: Final = 1000


#: Whose a message is that this process has got. What is `dropped` no process has any longer.
Whose: TypeAlias = Literal["ours", "others", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    """One process of a consumer, running or not."""

    consumer: str
    process: str
    topics: frozenset[str]
    started_ms: int
    seen_s: float
    """How many seconds ago it renewed its row."""
    ended: bool
    """It has said so."""

    @property
    def alive(self) -> bool:
        return not self.ended and self.seen_s <= (EARLIER_S if self.process == EARLIER else ALIVE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The topics of a consumer, by its processes."""

    wanted: frozenset[str]
    former: frozenset[str]
    """Topics that it has had, and no process wants any more."""
    ending: frozenset[str]
    """Those of them that a process had a moment ago. It may be about to start again: what was sent to them waits."""
    outdated: tuple[str, ...]
    """Processes that are gone and of which nothing need be remembered."""

    def wants(self, topic: str | None) -> bool:
        """Whether a process that is alive, or the one that was started last, has the topic."""
        return topic is not None and matches_any(self.wanted, topic)

    def drops(self, topic: str | None) -> bool:
        """Whether messages of the topic were wanted, and are no longer."""
        return topic is not None and matches_any(self.former, topic) and not matches_any(self.wanted, topic)

    def whose(self, topic: str | None, own: Sequence[str]) -> Whose:
        """Whose a message of this topic is, for a process with the topics `own`: never dropped, if it has the topic.
        What no process has asked for, as far as is known, is a binding or a queue that a person has made."""
        if topic is None or matches_any(own, topic):
            return "ours"
        if self.wants(topic) or matches_any(self.ending, topic):
            return "others"
        return "dropped" if self.drops(topic) else "ours"


NOTHING: Final = Standing(wanted=frozenset(), former=frozenset(), ending=frozenset(), outdated=())


def judge(processes: Sequence[RunningProcess], *, steady: bool = True) -> Standing:
    """What is wanted: the topics of those that are alive, and of the one that was started last. Not `steady`: those
    that look dead may be alive, if they have not ended."""
    if not processes:
        return NOTHING
    latest = max(processes, key=lambda each: (each.started_ms, each.process))
    living = [each for each in processes if each is latest or each.alive or not (steady or _is_gone(each))]
    wanted = frozenset[str]().union(*(each.topics for each in living))
    former = frozenset[str]().union(*(each.topics for each in processes)) - wanted
    ending = frozenset[str]().union(*(each.topics for each in processes if each.ended and each.seen_s <= RESTART_S))
    outdated = tuple(
        each.process
        for each in processes
        if each not in living and (_covers(each.topics, wanted) or each.seen_s > FORMER_S)
    )
    return Standing(wanted=wanted, former=former, ending=ending & former, outdated=outdated)


def _is_gone(process: RunningProcess) -> bool:
    """It cannot be alive, however long the database was away: it has ended, or is one of those without a beat."""
    return process.ended or (process.process == EARLIER and not process.alive)


def _covers(topics: Collection[str], wanted: Collection[str]) -> bool:
    return all(matches_any(wanted, topic) for topic in topics)


async def register(dialect: str, consumer: str, process: str, topics: Collection[str]) -> None:
    """This process is there. To be called before it subscribes, so that no topic is subscribed to that is not known."""
    await _write(STATEMENTS[dialect].registry.register(consumer, process, json.dumps(sorted(topics))))


async def note_ended(dialect: str, consumer: str, process: str) -> None:
    """This process has ended, or is about to."""
    await _write(STATEMENTS[dialect].registry.note_ended(consumer, process))


async def forget(dialect: str, consumer: str, processes: Sequence[str]) -> None:
    """These are not remembered any longer."""
    if processes:
        await _write(STATEMENTS[dialect].registry.forget(consumer, json.dumps(processes)))


async def list_processes(dialect: str, consumer: str | None = None) -> list[RunningProcess]:
    """The processes of one consumer, or of all."""

    return await with_connection(lambda: fetch_processes(STATEMENTS[dialect].registry, consumer))


async def fetch_processes(sql: RegistryStatements, consumer: str | None) -> list[RunningProcess]:
    """The same, on the connection at hand."""
    return [
        RunningProcess(
            consumer=name,
            process=process,
            topics=frozenset(json.loads(topics)),
            started_ms=started_ms,
            seen_s=-in_ms / 1000,
            ended=bool(ended),
        )
        for name, process, topics, started_ms, in_ms, ended in await Fetch(sql.processes(consumer))
    ]


async def list_consumers(dialect: str) -> list[str]:
    """The consumers that this database knows of."""

    async def work() -> list[str]:
        return [name for (name,) in await Fetch(STATEMENTS[dialect].registry.consumers())]

    return await with_connection(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What was deleted with a consumer."""

    handled: int
    """Of its ledger: messages it is known to have handled."""
    failed_messages: int
    """Failed messages, waiting or dead."""


async def end(dialect: str, consumer: str, actor: str, details: str) -> Ended:
    """Delete all that the database has of a consumer, some rows at a time, and note in the audit who did so."""
    sql = STATEMENTS[dialect]

    async def all_of(statement: Statement) -> int:
        total = 0
        while deleted := await Batch((statement,)):
            total += deleted
        return total

    async def work() -> Ended:
        handled, failed_messages, *_ = [await all_of(statement) for statement in sql.registry.end(consumer, AT_ONCE)]
        counts = f"{details}; ledger rows: {handled}; failed messages: {failed_messages}"
        await Batch((Boundary.BEGIN, sql.audit(actor, "remove", consumer, counts), Boundary.COMMIT))
        return Ended(handled=handled, failed_messages=failed_messages)

    return await with_connection(work)


async def _write(statement: Statement) -> None:
    async def work() -> None:
        await Batch((Boundary.BEGIN, statement, Boundary.COMMIT))

    await with_connection(work)
