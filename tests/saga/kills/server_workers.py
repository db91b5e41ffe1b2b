"""The engines that have a server, for the worker of `sagas.py`. What they need is in one string."""

from __future__ import annotations

from onefold.sagas import SagaEngine
from onefold.sagas.restate import Restate
from onefold.sagas.temporal import Temporal
from tests.saga.kills.sagas import killed


def open_restate(url: str) -> SagaEngine:
    ingress, admin, listen, service = url.split()
    return Restate(ingress=ingress, admin=admin, listen=listen, service=service, sagas=[killed], stop_s=1)


def open_temporal(url: str) -> SagaEngine:
    address, task_queue = url.split()
    return Temporal(address, task_queue=task_queue, sagas=[killed], dead_after_s=1, stop_s=1)
