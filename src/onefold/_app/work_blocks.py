"""Works without a request: what a block of `once.work(...)` is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold._http.install import Layer
from onefold._idempotency.encryption import peppers_of
from onefold._idempotency.locked_store import LockedStore
from onefold._kernel.effects import Isolation
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import Sealer
from onefold._outbox.write import Outbox

# What only some applications need is imported when they first need it.
if TYPE_CHECKING:
    from onefold._http.stepped_store import SteppedStore
    from onefold._steps.heartbeat import TaskHeartbeat, ThreadHeartbeat
    from onefold._steps.named_work import NamedWork

#: How long the end of a work is remembered, if nothing else is said.
WORK_RETENTION_S = 7 * 86_400.0


class WorkBlocks:
    """The part of an app that has them."""

    _layer: Layer
    _outbox: Outbox
    _isolation: Isolation | None
    #: What renews the leases of works; None until there is one.
    _beats: TaskHeartbeat | ThreadHeartbeat | None = None

    def _new_transaction(self, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> OwnedTransaction[Any]:
        raise NotImplementedError

    def _new_heartbeat(self) -> TaskHeartbeat | ThreadHeartbeat:
        raise NotImplementedError

    def _make_stepped(self, sealer: Sealer | None, unsealed: bool, keys: LockedStore) -> SteppedStore:
        from onefold._http.stepped_store import SteppedStore
        from onefold._steps.sealing import Sealing
        from onefold._steps.works import Works

        self._beats = self._new_heartbeat()
        return SteppedStore(keys, Works(self._outbox.dialect), self._beats, Sealing(sealer, unsealed))

    def _named_work(self, name: str, data: object, lease_s: float, keep_s: float) -> NamedWork:
        from onefold._steps.named_work import NamedWork

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
            renewals=shared.beats,
            listener=self._layer.listener,
        )
