"""Lists the consumers of a database and its broker for operators, and removes one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from onefold._inbox.pausing import pauses
from onefold._inbox.registry import ALIVE_S, EARLIER, RunningProcess, end, judge, list_consumers, list_processes
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.ports import AsyncDatabase, Broker, ManagesSubscriptions, SubscriptionSeen
from onefold._kernel.runners import run_async
from onefold.errors import ConfigurationError, ConsumerActive

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSeen:
    """A consumer, whether it runs or not."""

    name: str
    topics: tuple[str, ...]
    waiting: int | None
    """Messages at the broker that it has not acknowledged. None: the broker does not say."""
    running: int
    """Processes that were seen a moment ago."""
    seen_s: float | None
    """How many seconds ago one of them was seen. None: never, as far as is remembered."""
    paused_by: str | None = None
    """Who has paused it, if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What was deleted with a consumer."""

    waiting: int | None
    """Messages that waited at the broker. None: it kept nothing for it, or cannot say."""
    handled: int
    failed_messages: int


class Stored(NamedTuple):
    """What a database knows of its consumers."""

    names: set[str]
    processes: Sequence[RunningProcess]
    paused_by: Mapping[str, str]

    def describe(self, at_broker: Mapping[str, SubscriptionSeen]) -> list[ConsumerSeen]:
        """All consumers, by name, with what the broker keeps for them."""
        return [
            replace(
                describe(name, [member for member in self.processes if member.consumer == name], at_broker.get(name)),
                paused_by=self.paused_by.get(name),
            )
            for name in sorted(self.names | at_broker.keys())
        ]


async def read_stored(dialect: str) -> Stored:
    processes = await list_processes(dialect)
    paused_by = {each.consumer: each.actor for each in await pauses(dialect)}
    return Stored({*await list_consumers(dialect), *paused_by}, processes, paused_by)


async def survey(database: AsyncDatabase[Any], broker: Broker, also: Sequence[str] = ()) -> list[ConsumerSeen]:
    """All known consumers, by name; `also` are names to look up at a broker that cannot list its subscriptions."""
    stored = await _flow(database, read_stored(database.dialect))
    at_broker = {}
    if isinstance(broker, ManagesSubscriptions):
        at_broker = {seen.consumer: seen for seen in await broker.subscriptions(sorted(stored.names.union(also)))}
    return stored.describe(at_broker)


async def remove(database: AsyncDatabase[Any], broker: Broker, name: str, actor: str) -> Removed:
    """End a consumer for good: what waits for it, its ledger, its failed messages. Raises ConsumerActive while one of
    its processes runs, ConfigurationError where there is none of that name."""
    matches = [seen for seen in await survey(database, broker, [name]) if seen.name == name]
    if not matches:
        raise ConfigurationError(f"there is no consumer {name!r}; see `onefold consumers list`")
    if matches[0].running:
        raise ConsumerActive(
            f"consumer {name!r} cannot be removed while {matches[0].running} process(es) of it are running: stop them "
            f"first; one that was killed counts as running for {ALIVE_S:.0f} s"
        )
    waiting = await broker.remove(name) if isinstance(broker, ManagesSubscriptions) else None
    ended = await _flow(database, end(database.dialect, name, actor, f"waiting at the broker: {waiting}"))
    return Removed(waiting=waiting, handled=ended.handled, failed_messages=ended.failed_messages)


def describe(name: str, processes: Sequence[RunningProcess], at_broker: SubscriptionSeen | None) -> ConsumerSeen:
    """A consumer, from its processes and what a broker keeps for it."""
    listed = None if at_broker is None else at_broker.topics
    topics = judge(processes).wanted if listed is None else listed
    processes = [member for member in processes if member.process != EARLIER]
    alive = sum(member.alive for member in processes)
    return ConsumerSeen(
        name=name,
        topics=tuple(sorted(topics)),
        waiting=None if at_broker is None else at_broker.waiting,
        running=max(alive, (at_broker and at_broker.attached) or 0),
        seen_s=min((max(0.0, member.seen_s) for member in processes), default=None),
    )


async def _flow(database: AsyncDatabase[Any], flow: Flow[T]) -> T:
    return await run_async(flow, TaskExecutor(database))
