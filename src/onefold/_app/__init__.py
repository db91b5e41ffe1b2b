"""Onefold and AsyncOnefold: where the features meet. A line or two per method; the work is done below.

Both have the same methods with the same signatures; those of AsyncOnefold are awaited.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from onefold._app.base_app import BaseOnefold
from onefold._app.completer_methods import TaskCompleter, ThreadCompleter
from onefold._app.observing import TaskMeasuring, ThreadMeasuring
from onefold._app.work_blocks import WORK_RETENTION_S
from onefold._http import asgi, wsgi
from onefold._http.install import install_asgi, install_wsgi
from onefold._http.install_checks import leave_in
from onefold._http.reaper import reap_again_and_again, reap_or_log
from onefold._http.route_policy import Policy
from onefold._idempotency.retention import reap
from onefold._kernel.arguments import named_arguments
from onefold._kernel.context_managers import on_tasks, on_threads, task_block, thread_block
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, in_background
from onefold._kernel.messages import Delivery
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run, run_async
from onefold._kernel.telemetry.request_events import Reaped
from onefold._kernel.transaction import Transaction
from onefold._policy.ranges import require
from onefold._worker.ledger_reaper import RETENTION_S
from onefold._worker.transaction_blocks import async_block, block
from onefold._worker.wakeup import Notifier, ThreadNotifier
from onefold._worker.worker_settings import RelaySettings, check_relay_settings
from onefold.db._drivers import async_database, sync_database
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._steps.heartbeat import TaskHeartbeat, ThreadHeartbeat
    from onefold._steps.steps import Steps
    from onefold.db._threaded import ThreadedDatabase

__all__ = ["AsyncOnefold", "Onefold"]

T = TypeVar("T")


class Onefold(ThreadCompleter, ThreadMeasuring, BaseOnefold[Database[Any]]):
    """onefold for threads, over a SQLite file, a psycopg pool or a SQLAlchemy engine.

    `principal` finds the authenticated caller of a request: the stable id of an account, tenant or user, never a
    credential (tokens rotate between retries) and never a header that clients can set. It gets onefold's `Request`, or
    one of the framework's where its parameter is annotated so. An application with one principal only says so with
    `single_principal`. `authorize` may refuse a request: like `principal`, it runs before any replay.
    """

    _asynchronous = False
    _notifier: ThreadNotifier
    _beats: ThreadHeartbeat | None = None

    def _open(self, database: object) -> Database[Any]:
        opened = sync_database(database)
        self._notifier = ThreadNotifier(opened)
        return opened

    def install(self, app: Any) -> None:
        """Put the idempotency layer around a FastAPI, Starlette or Flask application."""
        if not install_wsgi(app, self._layer, self._database):
            install_asgi(app, self._layer, self._threaded())
        leave_in(app, self)

    def asgi(self, app: asgi.Application, routes: Mapping[str, Policy]) -> asgi.Application:
        """Wrap an ASGI application without a framework; `routes`: `{"POST /payments": once.policy(required=True)}`."""
        from onefold._http.routes import routes_of

        return self._layer.around_asgi(app, routes_of(routes), self._threaded())

    def wsgi(self, app: wsgi.Application, routes: Mapping[str, Policy]) -> wsgi.Application:
        """Wrap a WSGI application without a framework; `routes`: `{"POST /payments": once.policy(required=True)}`."""
        from onefold._http.routes import routes_of

        return self._layer.around_wsgi(app, routes_of(routes), self._database)

    @thread_block("once.transaction()")
    def transaction(self) -> Iterator[Transaction[Any]]:
        """A transaction outside of a request: its rows and its events commit together when the block ends."""
        self._check_outside("once.transaction()")
        executor = ThreadExecutor(self._database)
        run(self._plain.begin(self._isolation), executor)
        with block(self._new_transaction(executor), self._plain, executor) as tx:
            yield tx

    @named_arguments("once.handling")
    @thread_block("once.handling(...)")
    def handling(
        self,
        consumer: str,
        message_id: str,
        *,
        source: str | None = None,
        lease_s: float = 60.0,
        retention_s: float = RETENTION_S,
        dead_letter_on: tuple[type[Exception], ...] = (),
        delivery: Delivery | None = None,
    ) -> Iterator[Transaction[Any] | None]:
        """For messages received by other means: the transaction of `message_id`, or None if the consumer has handled it
        already. Ids of several sources may be alike where `source` says which it is. Acknowledge the message after the
        block, which may last `lease_s`. It is remembered for `retention_s`: as long as it can come again. What is in
        `dead_letter_on` makes it a dead letter, with `delivery`'s data and headers; when it comes again, it is None."""
        self._check_outside("once.handling()")
        self._ledger.check(consumer, retention_s)
        executor = ThreadExecutor(self._database)
        flows = self._handling_flows(consumer, message_id, source, lease_s, dead_letter_on, delivery)
        with self._trace_handling(consumer, message_id, delivery) as note:
            if note(run(flows.begin(), executor)):
                with block(self._new_transaction(executor), flows, executor) as tx:
                    yield tx
            else:
                yield None
        if (chore := self._ledger_chore(consumer, retention_s)) is not None:
            run(chore, ThreadExecutor(self._database))

    @named_arguments("once.work")
    @thread_block("once.work(...)")
    def work(
        self, name: str, *, data: object = None, lease_s: float = 60.0, retention_s: float = WORK_RETENTION_S
    ) -> Iterator[Steps]:
        """Work in recorded steps, without a request: a block of the same name that comes after a crash or an error goes
        on where this one stood, as soon as its process was silent for `lease_s`. `data` is what it is begun with, and
        must be the same then. Its end is remembered for `retention_s`: until then a block gets the recorded answers."""
        self._check_outside("once.work()")
        executor = ThreadExecutor(self._database)
        work = self._named_work(executor, name, data, lease_s, retention_s)
        with self._trace_work(name) as block:
            block.attempt = attempt = run(work.begin(), executor)
            try:
                yield attempt.make_steps(executor, self._new_transaction)
            except Exception:
                run(attempt.fail(), ThreadExecutor(self._database))
                raise
            except BaseException:
                executor.abandon()
                attempt.abandon()
                raise
            run(attempt.end(), executor)

    def migrate(self) -> list[int]:
        """Create or upgrade onefold's tables; the versions applied now."""
        from onefold._app.migrations import MIGRATIONS
        from onefold.db._migrations import migrate

        return run(migrate(self._database.dialect, MIGRATIONS[self._database.dialect]), ThreadExecutor(self._database))

    def reap(self, *, limit: int = 1000, batches_max: int = 1000) -> Reaped:
        """Forget what has expired, `limit` rows at a time and at most `batches_max` times."""
        flow = reap(self._layer.stepped(), limit=limit, batches_max=batches_max, listener=self._layer.listener)
        return run(flow, ThreadExecutor(self._database))

    @thread_block("once.reaping()")
    def reaping(self, *, every_s: float = 300.0) -> Iterator[None]:
        """Reap in the background, every `every_s`, for as long as the block lasts."""
        require("every_s", every_s, least=0.001, most=7 * 86_400)
        self._layer.reaping.seen = True
        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(every_s):
                reap_or_log(self.reap, every_s)

        thread = threading.Thread(target=loop, name="onefold-reaper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def relaying(self, **settings: Unpack[RelaySettings]) -> AbstractContextManager[None]:
        """Publish what is in the outbox, on a thread, for as long as the block lasts."""
        from onefold._worker.embedded import on_a_thread

        check_relay_settings(settings)
        return on_threads(on_a_thread(lambda stop, _: self.relay(stop, **settings), "relay"), "once.relaying()")

    def consuming(self, *, only: Collection[str] = ()) -> AbstractContextManager[None]:
        """Run the consumers, on a thread, for as long as the block lasts. It begins when they are subscribed."""
        from onefold._worker.embedded import on_a_thread

        return on_threads(on_a_thread(self._consuming(only), "consumers", waits=True), "once.consuming()")

    def pause_consumer(self, name: str, *, actor: str) -> bool:
        """Have a consumer pause, in all its processes; `actor` is in the audit. False: `name` is paused already."""
        from onefold._inbox.pausing import pause

        return run(pause(self._database.dialect, name, actor), ThreadExecutor(self._database))

    def resume_consumer(self, name: str, *, actor: str) -> bool:
        """Have a consumer go on that was paused; `actor` is in the audit. False: `name` is not paused."""
        from onefold._inbox.pausing import resume

        return run(resume(self._database.dialect, name, actor), ThreadExecutor(self._database))

    def close(self) -> None:
        """Close the connections onefold opened itself."""
        for part in (self._beats, self._activity, self._layer.cached):
            if part is not None:
                part.close()
        self._notifier.close()
        self._database.close()

    def _new_heartbeat(self) -> ThreadHeartbeat:
        from onefold._steps.heartbeat import ThreadHeartbeat

        return ThreadHeartbeat(self._database)

    def _for_workers(self) -> AsyncDatabase[Any]:
        return self._threaded()

    def _threaded(self) -> ThreadedDatabase[Any, Any]:
        from onefold.db._threaded import ThreadedDatabase, off_loop_handle, plain_handle

        waits = getattr(self._database, "handle_waits", False)
        return ThreadedDatabase(self._database, off_loop_handle if waits else plain_handle)


class AsyncOnefold(TaskCompleter, TaskMeasuring, BaseOnefold[AsyncDatabase[Any]]):
    """onefold for asyncio, over a SQLite file, an asyncpg or psycopg pool or a SQLAlchemy async engine.

    `principal` finds the authenticated caller of a request: the stable id of an account, tenant or user, never a
    credential (tokens rotate between retries) and never a header that clients can set. It gets onefold's `Request`, or
    one of the framework's where its parameter is annotated so. An application with one principal only says so with
    `single_principal`. `authorize` may refuse a request: like `principal`, it runs before any replay.
    """

    _asynchronous = True
    _notifier: Notifier
    _beats: TaskHeartbeat | None = None

    def _open(self, database: object) -> AsyncDatabase[Any]:
        opened = async_database(database)
        self._notifier = Notifier(opened)
        return opened

    def install(self, app: Any) -> None:
        """Put the idempotency layer around a FastAPI or Starlette application."""
        install_asgi(app, self._layer, self._database)
        leave_in(app, self)

    def asgi(self, app: asgi.Application, routes: Mapping[str, Policy]) -> asgi.Application:
        """Wrap an ASGI application without a framework; `routes`: `{"POST /payments": once.policy(required=True)}`."""
        from onefold._http.routes import routes_of

        return self._layer.around_asgi(app, routes_of(routes), self._database)

    def wsgi(self, app: wsgi.Application, routes: Mapping[str, Policy]) -> wsgi.Application:
        """Not for asyncio: a WSGI application runs on threads."""
        raise ConfigurationError("AsyncOnefold cannot serve WSGI, which runs on threads; use Onefold")

    @task_block("once.transaction()")
    async def transaction(self) -> AsyncIterator[Transaction[Any]]:
        """A transaction outside of a request: its rows and its events commit together when the block ends."""
        self._check_outside("once.transaction()")
        executor = TaskExecutor(self._database)
        await run_async(self._plain.begin(self._isolation), executor)
        async with async_block(self._new_transaction(executor), self._plain, executor) as tx:
            yield tx

    @named_arguments("once.handling")
    @task_block("once.handling(...)")
    async def handling(
        self,
        consumer: str,
        message_id: str,
        *,
        source: str | None = None,
        lease_s: float = 60.0,
        retention_s: float = RETENTION_S,
        dead_letter_on: tuple[type[Exception], ...] = (),
        delivery: Delivery | None = None,
    ) -> AsyncIterator[Transaction[Any] | None]:
        """For messages received by other means: the transaction of `message_id`, or None if the consumer has handled
        it already. Ids of several sources may be alike where `source` says which it is. Acknowledge the message after
        the block, which ends after `lease_s`, with a TimeoutError. It is remembered for `retention_s`: at least as long
        as it can come again. An exception of `dead_letter_on` makes it a dead letter, with the data and headers of
        `delivery`, and is raised; when it comes again, it is None."""
        self._check_outside("once.handling()")
        self._ledger.check(consumer, retention_s)
        executor = TaskExecutor(self._database)
        flows = self._handling_flows(consumer, message_id, source, lease_s, dead_letter_on, delivery)
        with self._trace_handling(consumer, message_id, delivery) as note:
            if note(await run_async(flows.begin(), executor)):
                handled = async_block(self._new_transaction(executor), flows, executor)
                async with handled as tx, asyncio.timeout(lease_s):  # on SQLite every other writer waits for it
                    yield tx
            else:
                yield None
        if (chore := self._ledger_chore(consumer, retention_s)) is not None:
            await run_async(chore, TaskExecutor(self._database))

    @named_arguments("once.work")
    @task_block("once.work(...)")
    async def work(
        self, name: str, *, data: object = None, lease_s: float = 60.0, retention_s: float = WORK_RETENTION_S
    ) -> AsyncIterator[Steps]:
        """Work in recorded steps, without a request: a block of the same name that comes after a crash or an error goes
        on where this one stood, as soon as its process was silent for `lease_s`. `data` is what it is begun with, and
        must be the same then. Its end is remembered for `retention_s`: until then a block gets the recorded answers."""
        self._check_outside("once.work()")
        executor = TaskExecutor(self._database)
        work = self._named_work(executor, name, data, lease_s, retention_s)
        with self._trace_work(name) as block:
            block.attempt = attempt = await run_async(work.begin(), executor)
            try:
                yield attempt.make_steps(executor, self._new_transaction)
            except Exception:
                await run_async(attempt.fail(), TaskExecutor(self._database))
                raise
            except BaseException:
                executor.abandon()
                if attempt.abandon() is not None:
                    in_background(run_async(attempt.fail(), TaskExecutor(self._database)))
                raise
            await run_async(attempt.end(), executor)

    async def migrate(self) -> list[int]:
        """Create or upgrade onefold's tables; the versions applied now."""
        from onefold._app.migrations import MIGRATIONS
        from onefold.db._migrations import migrate

        flow = migrate(self._database.dialect, MIGRATIONS[self._database.dialect])
        return await run_async(flow, TaskExecutor(self._database))

    async def reap(self, *, limit: int = 1000, batches_max: int = 1000) -> Reaped:
        """Forget what has expired, `limit` rows at a time and at most `batches_max` times."""
        flow = reap(self._layer.stepped(), limit=limit, batches_max=batches_max, listener=self._layer.listener)
        return await run_async(flow, TaskExecutor(self._database))

    @task_block("once.reaping()")
    async def reaping(self, *, every_s: float = 300.0) -> AsyncIterator[None]:
        """Reap in the background, every `every_s`, for as long as the block lasts."""
        from onefold._kernel.foreign_cancellations import cancel_until_ended

        require("every_s", every_s, least=0.001, most=7 * 86_400)
        self._layer.reaping.seen = True
        task = asyncio.create_task(reap_again_and_again(self.reap, every_s))
        try:
            yield
        finally:
            await cancel_until_ended(task)

    def relaying(self, **settings: Unpack[RelaySettings]) -> AbstractAsyncContextManager[None]:
        """Publish what is in the outbox, as a task, for as long as the block lasts."""
        from onefold._worker.embedded import as_task

        check_relay_settings(settings)
        return on_tasks(as_task(lambda stop, _: self.relay(stop, **settings), "relay"), "once.relaying()")

    def consuming(self, *, only: Collection[str] = ()) -> AbstractAsyncContextManager[None]:
        """Run the consumers, as tasks, for as long as the block lasts. It begins when they are subscribed."""
        from onefold._worker.embedded import as_task

        return on_tasks(as_task(self._consuming(only), "consumers", waits=True), "once.consuming()")

    async def pause_consumer(self, name: str, *, actor: str) -> bool:
        """Have a consumer pause, in all its processes; `actor` is in the audit. False: `name` is paused already."""
        from onefold._inbox.pausing import pause

        return await run_async(pause(self._database.dialect, name, actor), TaskExecutor(self._database))

    async def resume_consumer(self, name: str, *, actor: str) -> bool:
        """Have a consumer go on that was paused; `actor` is in the audit. False: `name` is not paused."""
        from onefold._inbox.pausing import resume

        return await run_async(resume(self._database.dialect, name, actor), TaskExecutor(self._database))

    async def close(self) -> None:
        """Close the connections onefold opened itself."""
        for part in (self._beats, self._activity, self._layer.cached):
            if part is not None:
                await part.close()
        await self._notifier.close()
        await self._database.close()

    def _new_heartbeat(self) -> TaskHeartbeat:
        from onefold._steps.heartbeat import TaskHeartbeat

        return TaskHeartbeat(self._database)

    def _for_workers(self) -> AsyncDatabase[Any]:
        return self._database
