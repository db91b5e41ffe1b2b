"""Works without a request: what a block of `once.work(...)` is made of."""

from __future__ import annotations

import functools
from typing import Any

from onefold._http.install import Layer
from onefold._idempotency.encryption import peppers_of
from onefold._kernel.effects import Isolation
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._steps.heartbeat import TaskHeartbeat, ThreadHeartbeat
from onefold._steps.named_work import NamedWork


class WorkBlocks:
    """The part of an app that has them."""

    _layer: Layer
    _isolation: Isolation | None
    _beats: TaskHeartbeat | ThreadHeartbeat

    def _new_transaction(self, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> OwnedTransaction[Any]:
        raise NotImplementedError

    def _named_work(
        self, executor: ThreadExecutor[Any] | TaskExecutor[Any], name: str, data: object, lease_s: float, keep_s: float
    ) -> NamedWork:
        shared = self._layer.stepped
        return NamedWork(
            shared.works,
            name,
            data=data,
            lease_s=lease_s,
            retention_s=keep_s,
            peppers=peppers_of(shared.sealing.sealer),
            isolation=self._isolation,
            sealing=shared.sealing,
            renewals=self._beats,
            new_transaction=functools.partial(self._new_transaction, executor),
        )
