"""Recorded steps for handlers of consumers: makes the attempts at messages for an inbox."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from onefold._inbox.consumer import Consumer
from onefold._inbox.stepped_handling import MessageEnd
from onefold._inbox.stored_message import StoredMessage
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, in_background, runs_a_loop
from onefold._kernel.messages import Message, pick_carried
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry import Listener
from onefold._kernel.tracing import Tracer
from onefold._steps.message_work import MessageName, MessageWork
from onefold._steps.model import Done, Held
from onefold._steps.sealing import Sealing
from onefold._steps.steps import Steps
from onefold._steps.work_attempt import WorkAttempt
from onefold._steps.work_ports import LeaseRenewals
from onefold._steps.works import Works

#: Over an executor of the handler's own colour.
NewTransaction = Callable[[Any], OwnedTransaction[Any]]


class MessageSteps:
    """The parts that the stepped handlers of one application share."""

    def __init__(
        self,
        works: Works,
        sealing: Sealing,
        renewals: LeaseRenewals,
        executor: ThreadExecutor[Any] | TaskExecutor[Any],
        new_transaction: NewTransaction,
        for_workers: Callable[[], AsyncDatabase[Any]],
        listener: Listener | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """Steps run where the handler does, on a thread or on the loop: `executor` is of that colour."""
        self.works = works
        self.sealing = sealing
        self.renewals = renewals
        self.executor = executor
        self.new_transaction = new_transaction
        self.listener = listener
        self.tracer = tracer
        self._for_workers = for_workers

    async def begin(self, consumer: Consumer, stored: StoredMessage, end: MessageEnd) -> SteppedMessage:
        message = stored.message
        assert message is not None
        work = MessageWork(
            self.works,
            MessageName(consumer.name, message.source, message.id),
            stored_id=stored.id,
            lease_s=consumer.lease_s,
            retention_s=consumer.retention_s,
            before=end.before,
            settle=end.settle,
            known=end.known,
            unless=end.unless,
            isolation=consumer.isolation,
            sealing=self.sealing,
            renewals=self.renewals,
            listener=self.listener,
            tracer=self.tracer,
        )
        return SteppedMessage(self, message, work, await work.claim())

    def give_back_later(self, flow: Flow[None]) -> None:
        """Run `flow` in the background, after an attempt was interrupted. Without a loop it is dropped, and the lease
        expires."""
        if runs_a_loop():
            in_background(run_async(flow, TaskExecutor(self._for_workers())))
        else:
            flow.close()


class SteppedMessage(WorkAttempt):
    """One attempt at a message, and the steps of its handler."""

    def __init__(self, shared: MessageSteps, message: Message, work: MessageWork, claim: Held | Done) -> None:
        super().__init__(work, claim)
        self._shared = shared
        self._message = message
        self.forget = work.forget

    def steps(self) -> Steps:
        return self.make_steps(self._shared.executor, self._begin)

    def interrupt(self) -> None:
        """End an attempt that may await nothing more: its work is given back in the background."""
        if not runs_a_loop() and isinstance(self._shared.executor, TaskExecutor):
            return  # the loop is gone, and its heartbeat with it
        held = self.abandon()
        if held is not None:
            self._shared.give_back_later(self._shared.works.give_back(held))

    def _begin(self, executor: Any) -> OwnedTransaction[Any]:
        tx = self._shared.new_transaction(executor)
        tx.carry(functools.partial(pick_carried, self._message.headers))
        return tx
