"""Works without a request: the parts of `once.work(...)` blocks and of consumers' handlers in steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from onefold._http.install import Layer
from onefold._idempotency.encryption import peppers_of
from onefold._idempotency.locked_store import LockedStore
from onefold._kernel.current_transaction import is_in_open_block
from onefold._kernel.effects import Isolation
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import Sealer
from onefold._outbox.write import Outbox
from onefold.errors import ConfigurationError, ProgrammerError

# What only some applications need is imported when they first need it.
if TYPE_CHECKING:
    from onefold._http.stepped_store import SteppedStore
    from onefold._inbox.consumer import Consumer
    from onefold._kernel.messages import Delivery
    from onefold._kernel.ports import AsyncDatabase
    from onefold._steps.heartbeat import TaskHeartbeat, ThreadHeartbeat
    from onefold._steps.named_work import NamedWork
    from onefold._steps.step_trace import WorkBlock
    from onefold._worker.message_steps import MessageSteps

#: How long the end of a work is remembered, by default.
WORK_RETENTION_S = 7 * 86_400.0


class WorkBlocks:
    """The part of an app that has them."""

    _asynchronous: ClassVar[bool]
    _database: Any
    _consumers: list[Consumer]
    _layer: Layer
    _outbox: Outbox
    _isolation: Isolation | None
    #: Renews the leases of works; None until there is one.
    _beats: TaskHeartbeat | ThreadHeartbeat | None = None

    def _new_transaction(self, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> OwnedTransaction[Any]:
        raise NotImplementedError

    def _new_heartbeat(self) -> TaskHeartbeat | ThreadHeartbeat:
        raise NotImplementedError

    def _for_workers(self) -> AsyncDatabase[Any]:
        raise NotImplementedError

    def _check_handler(self, consumer: Consumer) -> None:
        """Refuse a handler that works in steps of the other colour, or expects the connection of another driver."""
        from onefold._app.handle_annotations import check_handles

        check_handles(consumer.handler, f"consumer {consumer.name!r}", self._layer.name, self._database)
        if consumer.signature.works_in_steps and consumer.is_async is not self._asynchronous:
            is_now, needed = ("an async def", "a plain def") if consumer.is_async else ("a plain def", "an async def")
            raise ConfigurationError(
                f"the handler of consumer {consumer.name!r} works in recorded steps and is {is_now}: those of "
                f"{type(self).__name__} need {needed}"
            )

    def _message_steps(self) -> MessageSteps | None:
        """For consumers whose handlers work in steps."""
        if not any(consumer.signature.works_in_steps for consumer in self._consumers):
            return None
        from onefold._worker.message_steps import MessageSteps

        shared = self._layer.stepped()
        executor = (TaskExecutor if self._asynchronous else ThreadExecutor)(self._database)
        return MessageSteps(
            shared.works,
            shared.sealing,
            shared.renewals,
            executor,
            self._new_transaction,
            self._for_workers,
            self._layer.listener,
            self._outbox.tracer,
        )

    def _make_stepped(self, sealer: Sealer | None, unsealed: bool, keys: LockedStore) -> SteppedStore:
        from onefold._http.stepped_store import SteppedStore
        from onefold._steps.sealing import Sealing
        from onefold._steps.works import Works

        self._beats = self._new_heartbeat()
        return SteppedStore(keys, Works(self._outbox.dialect), self._beats, Sealing(sealer, unsealed))

    def _named_work(
        self,
        executor: ThreadExecutor[Any] | TaskExecutor[Any],
        name: str,
        data: object,
        lease_s: float,
        keep_s: float,
    ) -> NamedWork:
        from onefold._steps.named_work import NamedWork

        if is_in_open_block(executor):
            raise ProgrammerError(
                f"once.work({name!r:.120}) was called inside an open once.transaction() or once.handling(...) block, "
                "and nothing was run: what a work records is committed by itself, and would be kept although the block "
                "fails. End the block first, or write its rows in a work.phase(...)"
            )
        shared = self._layer.stepped()
        return NamedWork(
            shared.works,
            name,
            data=data,
            lease_s=lease_s,
            retention_s=keep_s,
            peppers=peppers_of(shared.sealing.sealer),
            isolation=self._isolation,
            sealing=shared.sealing,
            renewals=shared.renewals,
            listener=self._layer.listener,
            tracer=self._outbox.tracer,
        )

    def _trace_handling(
        self, consumer: str, message_id: str, delivery: Delivery | None
    ) -> AbstractContextManager[Callable[[bool], bool]]:
        """The block of `once.handling(...)` as a span, where there is a tracer. Its function takes whether the message
        is new."""
        if self._outbox.tracer is None:
            return nullcontext(bool)
        from onefold._inbox.processing_trace import trace_handling

        return trace_handling(self._outbox.tracer, consumer, message_id, delivery)

    def _trace_work(self, name: str) -> AbstractContextManager[WorkBlock]:
        """The block of a work as a span, where there is a tracer."""
        from onefold._steps.step_trace import WorkBlock, trace_work

        return nullcontext(WorkBlock()) if self._outbox.tracer is None else trace_work(self._outbox.tracer, name)
