"""An engine for tests: its journal is a list, and a saga is run again from its beginning whenever it is asked for.

It shows what the flow asks of an engine; nothing survives the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from onefold._saga.definition import AnySaga, Start, begin
from onefold._saga.engine import SagaEngine
from onefold._saga.execution import run_saga
from onefold._saga.saga_errors import CancelRequested, EngineFault, SagaUnknown
from onefold._saga.saga_status import HistoryEntry, SagaStatus, State, entry_of, judge
from onefold._saga.saga_values import Json
from onefold._saga.step_call import StepCall
from onefold.errors import ConfigurationError


@dataclass
class Kept:
    """A saga, and all that is known of it."""

    start: Start
    at: datetime
    journal: list[tuple[str, Json, datetime]] = field(default_factory=list)
    signals: list[tuple[str, Json]] = field(default_factory=list)
    signal_ids: set[tuple[str, str]] = field(default_factory=set)
    cancelled: str | None = None
    stopped: str | None = None
    outcome: Json = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    runs: int = 0

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


def kept_of(definition: AnySaga, saga_id: str, given: object) -> Kept:
    """A saga that was started, and has not run yet."""
    return Kept(start=begin(definition, saga_id, given), at=datetime.now(UTC))


class MemoryContext:
    """One run of a saga."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._position = 0
        self._shielded = False

    async def run_step(self, call: StepCall) -> Json:
        async def work() -> Json:
            self._check_cancelled()
            most = call.retry.attempts_max
            for number in range(1, most + 1):
                try:
                    return await call.attempt(last=number == most)
                except Exception:
                    await asyncio.sleep(0)
            raise AssertionError("the last attempt gives a record")

        return await self._recorded(call.journal_name, work)

    async def run_tx(self, call: StepCall) -> Json:
        raise ConfigurationError(f"s.tx({call.step!r}) needs an engine that shares your database")

    async def sleep(self, seconds: float) -> None:
        async def work() -> Json:
            try:
                async with asyncio.timeout(seconds):
                    await self._until(lambda: False)
            except TimeoutError:
                return None

        await self._recorded("sleep", work)

    async def wait_signal(self, signal: str, timeout_s: float | None) -> Json:
        def position() -> int | None:
            return next((at for at, (name, _) in enumerate(self._kept.signals) if name == signal), None)

        async def work() -> Json:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._until(lambda: position() is not None)
            except TimeoutError:
                return None
            at = position()
            assert at is not None
            return {"data": self._kept.signals.pop(at)[1]}

        return await self._recorded(f"signal:{signal}", work)

    async def cancel_requested(self) -> bool:
        return self._kept.cancelled is not None

    def shield(self) -> None:
        self._shielded = True

    async def _until(self, there: Callable[[], bool]) -> None:
        while True:
            changed = self._kept.changed
            self._check_cancelled()
            if there():
                return
            await changed.wait()

    def _check_cancelled(self) -> None:
        if self._kept.cancelled is not None and not self._shielded:
            raise CancelRequested(self._kept.cancelled)

    async def _recorded(self, name: str, work: Callable[[], Awaitable[Json]]) -> Json:
        journal, position = self._kept.journal, self._position
        self._position += 1
        if position == len(journal):
            try:
                record = await work()
            except CancelRequested as error:
                record = {"cancelled": str(error)}
            journal.append((name, record, datetime.now(UTC)))
        known, record, _ = journal[position]
        if known != name:
            raise EngineFault(f"saga {self._kept.start.saga_id!r}: {known!r} is in the journal, and not {name!r}")
        if isinstance(record, dict) and "cancelled" in record:
            raise CancelRequested(record["cancelled"])
        return record


class MemoryEngine(SagaEngine):
    """Runs sagas in this process. `kept` is everything."""

    def __init__(self, sagas: Sequence[AnySaga]) -> None:
        super().__init__(sagas)
        self.kept: dict[str, Kept] = {}
        self._is_open = True  # there is nothing to open

    async def _open(self) -> None: ...

    async def _close(self) -> None:
        tasks = [kept.task for kept in self.kept.values() if kept.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def run(self, saga_id: str) -> None:
        """Run a saga from its beginning, with the journal it has."""
        kept = self.kept[saga_id]
        kept.stopped, kept.runs = None, kept.runs + 1
        kept.task = asyncio.get_running_loop().create_task(self._run(kept))

    async def _run(self, kept: Kept) -> None:
        definition = self._sagas[f"{kept.start.saga}@{kept.start.version}"]
        try:
            kept.outcome = await run_saga(definition, kept.start, MemoryContext(kept))
        except EngineFault as fault:
            kept.stopped = str(fault)
        kept.change()

    async def _submit(self, start: Start) -> Start | None:
        if (known := self.kept.get(start.saga_id)) is not None:
            return known.start
        self.kept[start.saga_id] = Kept(start=start, at=datetime.now(UTC))
        self.run(start.saga_id)
        return None

    async def _outcome(self, saga_id: str) -> Json:
        kept = self._find(saga_id)
        while kept.outcome is None:
            await kept.changed.wait()
        return kept.outcome

    async def _signal(self, saga_id: str, signal: str, data: Json, signal_id: str | None) -> None:
        kept = self._find(saga_id)
        if signal_id is not None and (signal, signal_id) in kept.signal_ids:
            return
        kept.signal_ids |= {(signal, signal_id)} if signal_id is not None else set()
        kept.signals.append((signal, data))
        kept.change()

    async def _list(self, state: State | None, limit: int) -> Sequence[SagaStatus]:
        every = [await self.status(saga_id) for saga_id in reversed(self.kept)]
        return [each for each in every if state in (None, each.state)][:limit]

    async def status(self, saga_id: str) -> SagaStatus:
        kept = self._find(saga_id)
        state, error = judge(kept.outcome, await self.history(saga_id), kept.stopped)
        return SagaStatus(
            saga_id=saga_id,
            saga=kept.start.saga,
            version=kept.start.version,
            state=state,
            error=error,
            cancelled=kept.cancelled is not None,
            started_at=kept.at,
        )

    async def history(self, saga_id: str) -> Sequence[HistoryEntry]:
        entries = [entry_of(name, record, ended_at=at) for name, record, at in self._find(saga_id).journal]
        return [entry for entry in entries if entry is not None]

    async def cancel(self, saga_id: str, *, reason: str = "cancelled") -> bool:
        kept = self._find(saga_id)
        if kept.outcome is not None:
            return False
        kept.cancelled = kept.cancelled or reason
        kept.change()
        if kept.stopped is not None:
            self.run(saga_id)
        return True

    async def _resume(self, saga_id: str) -> bool:
        self.run(saga_id)
        return True

    async def _note(self, saga_id: str, action: str, actor: str) -> None: ...

    def _find(self, saga_id: str) -> Kept:
        if saga_id not in self.kept:
            raise SagaUnknown(f"there is no saga {saga_id!r}")
        return self.kept[saga_id]
