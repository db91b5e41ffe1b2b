"""The engines that have a server, opened by a test as often as it wants: at one address, as a process that is started
again would be."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Sequence
from typing import Any, Protocol

from onefold.sagas import SagaDefinition
from onefold.sagas.restate import Restate
from onefold.sagas.temporal import Temporal
from onefold.telemetry import Listener
from onefold.testing.fault_proxy import HOST, reserve_port
from onefold.testing.servers import PrivateRestate
from tests.support.temporal_server import PrivateTemporal

_numbers = itertools.count(1)


class Opener(Protocol):
    """One application on one server."""

    def __call__(
        self,
        sagas: Sequence[SagaDefinition[Any, Any]],
        *,
        stop_s: float = ...,
        serve: bool = ...,
        listener: Listener | None = ...,
    ) -> Any:
        """An engine that is not open yet."""
        ...

    def close(self) -> None:
        """Give back what was reserved."""
        ...


class RestateOpener:
    """On Restate: with an address and a service of its own."""

    def __init__(self, server: PrivateRestate) -> None:
        self._server = server
        self._port: socket.socket = reserve_port()
        self.listen = f"{HOST}:{self._port.getsockname()[1]}"
        self.service = f"application-{next(_numbers)}"

    def __call__(
        self,
        sagas: Sequence[SagaDefinition[Any, Any]],
        *,
        stop_s: float = 10.0,
        serve: bool = True,
        listener: Listener | None = None,
    ) -> Restate:
        return Restate(
            ingress=self._server.ingress,
            admin=self._server.admin,
            service=self.service,
            listen=self.listen if serve else None,
            sagas=sagas,
            stop_s=stop_s,
            listener=listener,
        )

    def close(self) -> None:
        self._port.close()


class TemporalOpener:
    """On Temporal: with a task queue of its own."""

    def __init__(self, server: PrivateTemporal) -> None:
        self._server = server
        self.task_queue = f"application-{next(_numbers)}"

    def __call__(
        self,
        sagas: Sequence[SagaDefinition[Any, Any]],
        *,
        stop_s: float = 10.0,
        serve: bool = True,
        listener: Listener | None = None,
    ) -> Temporal:
        return Temporal(
            self._server.address,
            task_queue=self.task_queue,
            sagas=sagas,
            stop_s=stop_s,
            listener=listener,
            serve=serve,
            dead_after_s=2,
        )

    def close(self) -> None:
        pass
