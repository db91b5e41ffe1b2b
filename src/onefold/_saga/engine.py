"""The base of all engines: the sagas they run, the detection of repeated starts, and results.

An adapter submits, finds and signals sagas; everything that must be the same on all engines is decided here.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from onefold._kernel.foreign_cancellations import cancel_until_ended
from onefold._kernel.results import result_type_of
from onefold._kernel.telemetry import Listeners, are_listeners, join
from onefold._policy.ranges import require
from onefold._saga.definition import AnySaga, SagaDefinition, Start, begin, by_workflow, check_saga
from onefold._saga.saga_errors import Compensated, SagaMismatch, SagaNotStopped, SagaStopped
from onefold._saga.saga_names import check_name, check_saga_id, check_signal_id
from onefold._saga.saga_status import STATES, HistoryEntry, SagaStatus, State
from onefold._saga.saga_telemetry import StuckSagas
from onefold._saga.saga_values import Json, decode, encode
from onefold.errors import ConfigurationError, StoreUnavailable

_log = logging.getLogger("onefold.saga")

In = TypeVar("In")
Out = TypeVar("Out")

LISTED_MAX: Final = 10_000
#: How often a wait for a result checks whether the saga has stopped: often at first.
_LOOK_S: Final = 0.2
_LOOK_S_MAX: Final = 10.0


class SagaEngine(ABC):
    """Runs sagas, one id at most once. An adapter implements the abstract methods."""

    def __init__(self, sagas: Sequence[AnySaga], listener: Listeners | None = None) -> None:
        if not are_listeners(listener):
            raise ConfigurationError(f"listener={listener!r} must be a function of one event, a list of them, or None")
        self._sagas = by_workflow(sagas)
        self._listener = join(listener)
        self._stuck = StuckSagas(self._listener)
        self._is_open = False
        self._runs_sagas = True

    async def __aenter__(self) -> Self:
        if self._is_open:
            raise ConfigurationError(f"this {type(self).__name__} is open already: one block at a time")
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Begin no more steps, and stop: the sagas go on in other processes, or when it is opened again."""
        self._is_open = False
        await self._close()

    @property
    def is_open(self) -> bool:
        """Whether the engine is open: its other methods need that."""
        return self._is_open

    @asynccontextmanager
    async def as_operator(self) -> AsyncIterator[Self]:
        """The engine, open for an operator's command: it runs no saga, which closing would interrupt."""
        self._runs_sagas = False
        try:
            async with self:
                yield self
        finally:
            self._runs_sagas = True

    async def start(self, saga: SagaDefinition[In, Any], saga_id: str, given: In) -> bool:
        """Start a saga. False: it was started before, with the same input. SagaMismatch: the id has another saga."""
        check_saga(saga, "engine.start(")
        return await self.submit(begin(saga, check_saga_id(saga_id), given))

    async def submit(self, start: Start) -> bool:
        """Start the saga that `start_on_commit` published as `start`. Returns the same as `start`."""
        if f"{start.saga}@{start.version}" not in self._sagas:
            raise ConfigurationError(
                f"saga {start.saga!r} in version {start.version!r} is not run by this engine, which has "
                f"{', '.join(self._sagas)}: add it to sagas=[...]"
            )
        self._check_open()
        existing = await self._submit(start)
        if existing is not None:
            _compare(start, existing)
        return existing is None

    async def result(self, saga_id: str, *, timeout_s: float | None = None) -> Any:
        """Wait for a saga to end, and return its function's result. Compensated: it did not complete. SagaStopped: it
        does not end until an operator acts. TimeoutError: it goes on after `timeout_s`. A stuck saga is waited for."""
        if timeout_s is not None:
            require("timeout_s", timeout_s)
        check_saga_id(saga_id)
        self._check_open()
        async with asyncio.timeout(timeout_s):
            outcome = await self._wait_for_end(saga_id)
        if outcome["outcome"] == "compensated":
            raise Compensated(saga_id, outcome["error"], cancelled=outcome["cancelled"])
        definition = self._sagas.get(f"{outcome['saga']}@{outcome['version']}")
        annotation = Any if definition is None else result_type_of(definition.function)
        return decode(outcome["result"], annotation, what=f"the result of saga {saga_id!r}")

    async def _wait_for_end(self, saga_id: str) -> Json:
        """The outcome. Engines report an end only, so the status is polled for a stop beside: SagaStopped."""
        ending = asyncio.ensure_future(self._outcome(saga_id))
        stopping = asyncio.ensure_future(self._wait_for_stop(saga_id, ending))
        try:
            await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                await stopping
            return ending.result()
        finally:
            await cancel_until_ended(ending, stopping)

    async def _wait_for_stop(self, saga_id: str, ending: asyncio.Future[Json]) -> None:
        """Raise SagaStopped if the saga stops before its end."""
        look_s = _LOOK_S
        while not (await asyncio.wait({ending}, timeout=look_s))[0]:
            with suppress(StoreUnavailable):  # a restarting engine has the status when it is back
                status = await self.status(saga_id)
                if status.state == "stopped":
                    raise SagaStopped(saga_id, status.error or "")
            look_s = min(2 * look_s, _LOOK_S_MAX)

    async def retry(self, saga_id: str) -> bool:
        """Resume a stopped saga with the present code. False: it has ended. SagaNotStopped: it goes on by itself.
        SagaUnknown."""
        status = await self.status(saga_id)
        if status.state in ("completed", "compensated"):
            return False
        if status.state != "stopped":
            raise SagaNotStopped(
                f"saga {saga_id!r} is {status.state}, and goes on by itself: only one that has stopped is retried"
                + (f" ({status.error}; its next round follows after a pause)" if status.state == "stuck" else "")
            )
        return await self._resume(saga_id)

    async def signal(self, saga_id: str, signal: str, data: Any = None, *, signal_id: str | None = None) -> None:
        """Send a saga `data` that it waits for with `s.wait(signal)`, now or later. With a `signal_id` repetitions are
        dropped; another signal may have the same id."""
        check_name(signal, "signal")
        if signal_id is not None:
            check_signal_id(signal_id)
        encoded = encode(data, what=f"the data of signal {signal!r} for saga {saga_id!r}")
        check_saga_id(saga_id)
        self._check_open()
        await self._signal(saga_id, signal, encoded, signal_id)

    async def list(self, *, state: State | None = None, limit: int = 100) -> Sequence[SagaStatus]:
        """The newest sagas, at most `limit`, of one `state` or of all."""
        require("limit", limit, least=1, most=LISTED_MAX, whole=True)
        if state is not None and state not in STATES:
            raise ConfigurationError(f"state={state!r} is not one of {', '.join(STATES)}")
        self._check_open()
        return await self._list(state, limit)

    async def audit(self, saga_id: str, *, action: str, actor: str) -> None:
        """Record an `action` of `actor` on a saga, before it is done. SagaUnknown."""
        await self.status(saga_id)
        _log.warning("saga %s: %s by %s", saga_id, action, actor)
        await self._note(saga_id, action, actor)

    def consume_starts(self, once: Any, *, name: str = "onefold-sagas") -> None:
        """Have the consumers of a Onefold or AsyncOnefold (`once`) start the sagas of `start_on_commit`. Called on
        the event loop of the engine, before the consumers run; `name` is the name of the consumer."""
        from onefold._saga.starting import add_consumer

        add_consumer(self, once, name)

    def _check_open(self) -> None:
        if not self._is_open:
            name = type(self).__name__
            raise ConfigurationError(
                f"this {name} is not open: use it inside of `async with {name}(...) as engine`, which opens it, or of "
                "its application's lifespan"
            )

    @abstractmethod
    async def _open(self) -> None:
        """Begin to run sagas, unless for an operator (`_runs_sagas`). `_close` follows where it fails."""

    @abstractmethod
    async def _close(self) -> None:
        """Undo `_open`, also where it failed halfway. A second call does nothing."""

    @abstractmethod
    async def _submit(self, start: Start) -> Start | None:
        """Submit this start to the engine. If its id exists, for a saga of any name: the Start it had; else None."""

    @abstractmethod
    async def _outcome(self, saga_id: str) -> Json:
        """Wait for the outcome that `run_saga` returned. SagaUnknown; SagaStopped: it was ended from outside."""

    @abstractmethod
    async def _signal(self, saga_id: str, signal: str, data: Json, signal_id: str | None) -> None:
        """Send a signal. SagaUnknown."""

    @abstractmethod
    async def _list(self, state: State | None, limit: int) -> Sequence[SagaStatus]:
        """The newest sagas first."""

    @abstractmethod
    async def status(self, saga_id: str) -> SagaStatus:
        """The status of a saga. SagaUnknown."""

    @abstractmethod
    async def history(self, saga_id: str) -> Sequence[HistoryEntry]:
        """Every step, compensation, pause and signal of a saga, in order, with attempts and errors. SagaUnknown."""

    @abstractmethod
    async def cancel(self, saga_id: str, *, reason: str = "cancelled") -> bool:
        """Ask a saga to compensate: its next step is not run, and its pauses and waits end. `reason` is kept as its
        error. False: it has ended. One that compensates already goes on with that, and one that has stopped goes on.
        SagaUnknown."""

    @abstractmethod
    async def _resume(self, saga_id: str) -> bool:
        """Resume a stopped saga: from here on it counts as running. False: it has ended."""

    @abstractmethod
    async def _note(self, saga_id: str, action: str, actor: str) -> None:
        """Write an operator's action to the saga's history."""


def _compare(start: Start, existing: Start) -> None:
    if start.fingerprint == existing.fingerprint:
        return
    if (start.saga, start.version) == (existing.saga, existing.version):
        other = "other input"
    elif start.saga == existing.saga:
        other = f"version {existing.version!r}, not {start.version!r}"
    else:
        other = f"the saga {existing.saga!r}, not {start.saga!r}"
    raise SagaMismatch(
        f"saga id {start.saga_id!r} was started before with {other}, and nothing is started now: use another id, or "
        "start it with what it had"
    )
