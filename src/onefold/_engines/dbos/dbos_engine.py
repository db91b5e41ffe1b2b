"""The engine `Dbos`: opens DBOS in this process, runs sagas in it, and closes it again."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from onefold._engines.dbos.saga_database import SagaDatabase
from onefold._kernel.arguments import named_arguments
from onefold._kernel.clock import wall_ms
from onefold._kernel.extras import missing_extra
from onefold._kernel.foreign_cancellations import cancel_until_ended
from onefold._kernel.ids import new_id
from onefold._kernel.telemetry import Listeners
from onefold._policy.ranges import require
from onefold._saga.definition import AnySaga, Start
from onefold._saga.engine import SagaEngine
from onefold._saga.execution import run_saga
from onefold._saga.saga_errors import EngineFault, SagaUnknown
from onefold._saga.saga_names import check_name, check_saga_id
from onefold._saga.saga_status import HistoryEntry, SagaStatus, State
from onefold._saga.saga_telemetry import report_end, report_stop
from onefold._saga.saga_values import Json
from onefold.errors import ConfigurationError

try:
    from dbos import (
        DBOS,
        AsyncSQLAlchemyDatasource,
        DBOSConfig,
        DBOSPortableJSONSerializer,
        SetWorkflowID,
        SQLAlchemyDatasource,
        WorkflowStatus,
    )
    from dbos import error as dbos_errors
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine
except ModuleNotFoundError as error:
    raise missing_extra(error, "dbos") from None

from onefold._engines.dbos.executor_locks import ExecutorLocks, open_locks
from onefold._engines.dbos.saga_context import AUDIT, CANCEL, STOPPED, TOPIC, SagaContext, end_journal, outside
from onefold._engines.dbos.saga_records import (
    FAILED,
    actions_of,
    history_of,
    outcome_of,
    start_of,
    status_of,
    stopped_of,
)
from onefold._engines.dbos.takeover import Takeover, queue_of, resume

_log = logging.getLogger("onefold.saga")

#: How soon a waiting saga notices a signal on SQLite, which has no notifications.
_NOTICE_S: Final = 0.1
#: How often a result is polled: often at first.
_LOOK_S: Final = 0.02
_LOOK_S_MAX: Final = 0.5
#: How soon a resumed saga runs.
_QUEUE_S: Final = 0.5
_PAGE: Final = 200


class OnefoldDBOS(DBOS):
    """Our own DBOS: where the process has one already, DBOS would return that instead."""


class Dbos(SagaEngine):
    """Sagas on DBOS, in this process: `async with Dbos("sqlite:///sagas.db", sagas=[order]) as engine`.

    `url` is the database of DBOS's own tables, `sagas` are those that it runs. `database` is a SQLAlchemy Engine or
    AsyncEngine of your own, for `s.tx(...)`. `name` keeps applications apart that
    share a PostgreSQL database. Sagas of dead processes are taken over every `takeover_s`. `listener` gets
    what happens, as that of AsyncOnefold is. A process has one: DBOS is one per process, and its sagas run on the event
    loop that opened it.
    """

    _of_process: Dbos | None = None

    @named_arguments("Dbos")
    def __init__(
        self,
        url: str,
        *,
        sagas: Sequence[AnySaga],
        database: Engine | AsyncEngine | None = None,
        name: str = "onefold",
        takeover_s: float = 5.0,
        listener: Listeners | None = None,
    ) -> None:
        super().__init__(sagas, listener)
        if database is not None and not isinstance(database, Engine | AsyncEngine):
            raise ConfigurationError(f"database={database!r} of Dbos must be a SQLAlchemy Engine or AsyncEngine")
        require("takeover_s", takeover_s, least=0.05, most=86_400)
        self._url = url
        self._user_database = database
        self._name = check_name(name, "name of the application")
        self._takeover_s = takeover_s
        self._database: SagaDatabase | None = None
        self._locks: ExecutorLocks | None = None
        self._takeover_task: asyncio.Task[None] | None = None
        self._datasource: SQLAlchemyDatasource | AsyncSQLAlchemyDatasource | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._workflows: dict[str, Any] = {}
        self._launched = False
        self._closing = False
        SagaDatabase(url).close()  # a wrong address is refused here

    async def _open(self) -> None:
        if Dbos._of_process is not None:
            raise ConfigurationError(
                "this process has an open Dbos, and DBOS is one per process: give that one all sagas, or end its block"
            )
        Dbos._of_process = self
        self._closing = False
        await self._launch()

    async def _launch(self) -> None:
        executor = f"{socket.gethostname()}-{os.getpid()}-{new_id(wall_ms())}"
        self._database = SagaDatabase(self._url)
        self._locks = open_locks(self._database, executor)
        config: DBOSConfig = {
            "name": self._name,
            "system_database_url": self._url,
            "system_database_engine": self._database.engine,
            # Not a hash of the code: any edit would strand what runs. Each saga has a version of its own.
            "application_version": f"{self._name}-sagas",
            "executor_id": executor,
            "serializer": DBOSPortableJSONSerializer(),
            "notification_listener_polling_interval_sec": _NOTICE_S,
            "log_level": "ERROR",
        }
        made: object = OnefoldDBOS(config=config)
        if not isinstance(made, OnefoldDBOS):
            raise ConfigurationError(
                "this process has a DBOS of the application's own, and DBOS is one per process: run the sagas in a "
                "process of their own, or the application's workflows"
            )
        self._launched = True
        for workflow, definition in self._sagas.items():
            self._workflows[workflow] = DBOS.workflow(name=workflow)(self._runner(definition))
        await self._open_datasource()
        DBOS.listen_queues([queue_of(workflow) for workflow in self._sagas] if self._runs_sagas else [])
        # Before anything is run under its name: a saga of an executor without a lock counts as one of a dead process.
        await asyncio.to_thread(self._locks.hold)
        await asyncio.to_thread(self._locks.enter_opening)
        try:
            # Here, on the loop: DBOS runs what it resumes on the loop that it was launched from.
            DBOS.launch()
        finally:
            self._locks.leave_opening()
        await outside(self._register_queues)
        if not self._runs_sagas:
            return
        takeover = Takeover(self._locks, own=executor, workflows=self._sagas, every_s=self._takeover_s)
        self._takeover_task = asyncio.get_running_loop().create_task(takeover.run())

    async def _register_queues(self) -> None:
        for workflow in self._sagas:
            await DBOS.register_queue_async(queue_of(workflow), polling_interval_sec=_QUEUE_S)

    async def _open_datasource(self) -> None:
        serializer = DBOSPortableJSONSerializer()
        match self._user_database:
            case AsyncEngine() as engine:
                url = engine.url.render_as_string(hide_password=False)
                self._datasource = await AsyncSQLAlchemyDatasource.create(url, engine=engine, serializer=serializer)
            case Engine() as engine:
                url = engine.url.render_as_string(hide_password=False)
                self._datasource = await asyncio.to_thread(
                    lambda: SQLAlchemyDatasource.create(url, engine=engine, serializer=serializer)
                )
            case None:
                self._datasource = None

    async def _close(self) -> None:
        """Stop here: running sagas are resumed by another process, or by the next of this name."""
        loop = asyncio.get_running_loop()
        self._closing = True
        await cancel_until_ended(*(task for task in (self._takeover_task, *self._running) if task is not None))
        self._takeover_task = None
        try:
            if self._launched:
                await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
        finally:
            if self._launched:
                # DBOS has put its own, which is shut down now.
                loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
                self._launched = False
            if self._locks is not None:
                self._locks.close()
            if self._database is not None:
                self._database.close()
            self._locks = self._database = None
            if Dbos._of_process is self:
                Dbos._of_process = None

    def _runner(self, definition: AnySaga) -> Any:
        async def run(data: Json) -> Json:
            task = asyncio.current_task()
            assert task is not None
            if self._closing:
                raise asyncio.CancelledError  # as what runs: DBOS has begun it after that was cancelled
            self._running.add(task)
            start = Start.from_json(data)
            try:
                context = SagaContext(start.saga_id, self._datasource)
                outcome = await run_saga(definition, start, context, listener=self._listener, stuck=self._stuck)
                await end_journal(start.saga_id)
                report_end(self._listener, start, outcome)
                return outcome
            except EngineFault as fault:
                if self._closing:
                    raise  # of the end of this engine: the saga is resumed elsewhere, or when it is opened again
                _log.error("%s", fault)
                report_stop(self._listener, start, fault)
                text = str(fault)
                await outside(lambda: DBOS.update_workflow_attributes_async(start.saga_id, {STOPPED: text}, merge=True))
                raise
            finally:
                self._running.discard(task)

        return run

    async def _submit(self, start: Start) -> Start | None:
        workflow = self._workflows[f"{start.saga}@{start.version}"]

        async def work() -> Start | None:
            try:
                with SetWorkflowID(start.saga_id, workflow_id_reuse_policy="reject"):
                    await DBOS.start_workflow_async(workflow, start.to_json())
            except dbos_errors.DBOSWorkflowIDInUseError:
                return start_of(await self._find(start.saga_id))
            return None

        return await outside(work)

    async def _outcome(self, saga_id: str) -> Json:
        look_s = _LOOK_S
        while (outcome := outcome_of(await self._find(saga_id))) is None:
            await asyncio.sleep(look_s)
            look_s = min(look_s * 1.5, _LOOK_S_MAX)
        return outcome

    async def _signal(self, saga_id: str, signal: str, data: Json, signal_id: str | None) -> None:
        await self._find(saga_id)
        message_id = None if signal_id is None else f"{saga_id}:signal:{signal}:{signal_id}"
        await self._send(saga_id, {"signal": signal, "data": data}, message_id)

    async def cancel(self, saga_id: str, *, reason: str = "cancelled") -> bool:
        found = await self._find(check_saga_id(saga_id))
        if outcome_of(found) is not None:
            return False
        if (found.attributes or {}).get(CANCEL) is None:
            await outside(lambda: DBOS.update_workflow_attributes_async(saga_id, {CANCEL: reason}, merge=True))
        # For a saga that waits or sleeps. Sent again by a repetition: the process may have died in between.
        await self._send(saga_id, {"cancel": reason}, f"{saga_id}:cancel")
        if stopped_of(found) is not None and found.status != FAILED:
            await outside(lambda: resume([found]))
        return True

    async def _resume(self, saga_id: str) -> bool:
        found = await self._find(saga_id)
        if found.status == FAILED:
            raise ConfigurationError(f"saga {saga_id!r} has ended with an error in DBOS itself: {found.error}")
        await outside(lambda: resume([found]))
        return True

    async def status(self, saga_id: str) -> SagaStatus:
        found = await self._find(check_saga_id(saga_id))
        return status_of(found, await self._history(saga_id))

    async def history(self, saga_id: str) -> Sequence[HistoryEntry]:
        found = await self._find(check_saga_id(saga_id))
        entries = [*await self._history(saga_id), *actions_of(found)]
        return sorted(entries, key=lambda entry: (entry.ended_at is None, entry.ended_at))

    async def _note(self, saga_id: str, action: str, actor: str) -> None:
        await self._find(saga_id)
        noted = {f"{AUDIT}{uuid.uuid4().hex}": {"action": action, "actor": actor, "at_ms": wall_ms()}}
        await outside(lambda: DBOS.update_workflow_attributes_async(saga_id, noted, merge=True))

    async def _list(self, state: State | None, limit: int) -> Sequence[SagaStatus]:
        listed: list[SagaStatus] = []
        offset = 0
        while len(listed) < limit:
            page = await self._page(offset)
            for each in page:
                # Only what runs has to be looked into: it may compensate, or be stuck.
                history = [] if outcome_of(each) is not None else await self._history(each.workflow_id)
                status = status_of(each, history)
                if state in (None, status.state):
                    listed.append(status)
            if len(page) < _PAGE:
                break
            offset += _PAGE
        return listed[:limit]

    async def _page(self, offset: int) -> list[WorkflowStatus]:
        names = list(self._sagas)
        return await outside(lambda: DBOS.list_workflows_async(name=names, sort_desc=True, limit=_PAGE, offset=offset))

    async def _history(self, saga_id: str) -> list[HistoryEntry]:
        return history_of(await outside(lambda: DBOS.list_workflow_steps_async(saga_id)))

    async def _find(self, saga_id: str) -> WorkflowStatus:
        self._check_open()
        found = await outside(lambda: DBOS.list_workflows_async(workflow_ids=[saga_id]))
        if not found:
            raise SagaUnknown(f"there is no saga {saga_id!r} in {self._name!r}: was it started, and in this database?")
        return found[0]

    async def _send(self, saga_id: str, message: Json, message_id: str | None) -> None:
        await outside(lambda: DBOS.send_async(saga_id, message, TOPIC, idempotency_key=message_id))
