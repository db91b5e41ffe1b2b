"""Runs consumers over one broker and one database, until they are stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from onefold._inbox.consumer import Consumer
from onefold._inbox.stepped_handling import StepsForMessages
from onefold._kernel.foreign_cancellations import Interrupted, cancel_until_ended, resist
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase, Broker, MatchesPatterns
from onefold._kernel.telemetry import Listener
from onefold._kernel.topics import refuse_patterns
from onefold._kernel.wakeup_signals import Wakeups
from onefold._worker.backlog_measuring import measure_consumer, measuring
from onefold._worker.backoff_timer import BackoffTimer, pause
from onefold._worker.broker_closing import close_broker
from onefold._worker.cancellation import either
from onefold._worker.consumer_worker import ConsumerWorker
from onefold._worker.flow_runner import MakeTransaction
from onefold._worker.pause_gate import PauseGate
from onefold.errors import BrokerUnavailable

_log = logging.getLogger("onefold.consumer")


class ConsumerRunner:
    """Runs the consumers of one broker over one database until they are stopped. Opens the broker, and closes it."""

    def __init__(
        self,
        database: AsyncDatabase[Any],
        broker: Broker,
        consumers: Sequence[Consumer],
        *,
        transaction: MakeTransaction = OwnedTransaction,
        listener: Listener | None = None,
        steps: StepsForMessages | None = None,
        grace_s: float = 30.0,
        wakeups: Wakeups | None = None,
    ) -> None:
        """`steps` is for handlers that work in recorded steps. `wakeups` signals wake-ups while this runs."""
        for consumer in consumers:
            consumer.check_redelivery(broker.redelivery_s)
            if not (isinstance(broker, MatchesPatterns) and broker.matches_patterns):
                refuse_patterns(type(broker).__name__, consumer.name, consumer.topics)
        self._broker = broker
        self._database = database
        self._listener = listener
        self._measurements = [partial(measure_consumer, each.name) for each in consumers]
        self._grace_s = grace_s
        self._gates = [
            PauseGate(
                database,
                broker,
                each,
                partial(ConsumerWorker, database, broker, each, transaction, listener, steps=steps, wakeups=wakeups),
                listener,
                wakeups,
            )
            for each in consumers
        ]

    async def run(self, stop: asyncio.Event, subscribed: Callable[[], None] | None = None) -> None:
        """Consume until `stop` is set; then finish what is being handled, and give back the rest. `subscribed` is
        called once each consumer has its subscription, or has met what keeps it from having one: it goes on trying."""
        opened = asyncio.Event()
        try:
            async with measuring(self._database, self._listener, *self._measurements):
                work = [self._open(stop, opened), *(gate.run(stop, self._grace_s, opened) for gate in self._gates)]
                if subscribed is not None:
                    work.append(self._report_subscribed(stop, subscribed))
                await _run_together(work)
        finally:
            await close_broker(self._broker)

    def alive(self) -> dict[str, float]:
        """For each consumer, seconds since its loops last made a turn, at the broker and at its failed messages; for
        each handler past its time limit, seconds since it began. The name of a paused consumer says so."""
        return {name: seconds for gate in self._gates for name, seconds in gate.alive().items()}

    async def _report_subscribed(self, stop: asyncio.Event, subscribed: Callable[[], None]) -> None:
        for gate in self._gates:
            await either(stop, gate.tried)
        subscribed()

    async def _open(self, stop: asyncio.Event, opened: asyncio.Event) -> None:
        backoff = BackoffTimer()
        while not (stop.is_set() or opened.is_set()):
            for gate in self._gates:
                gate.turn()
            try:
                await resist(self._broker.open())
                opened.set()
            except (BrokerUnavailable, Interrupted) as error:
                if backoff.failures == 0:
                    _log.warning("the broker is unavailable; consumers keep trying to connect: %s", error)
                    for gate in self._gates:
                        gate.tried.set()
                await pause(stop, backoff.next_s())


async def _run_together(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all until they end; the first that fails ends the others. Not a TaskGroup: that cancels each once, and one
    that loses its cancellation would keep it for ever."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await cancel_until_ended(*tasks)
    tasks.sort(key=lambda task: task not in ended)
    errors = [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]
    for error in errors[1:]:
        _log.error("a further task of the consumers failed, too: %s", error, exc_info=error)
    if errors:
        raise errors[0]
