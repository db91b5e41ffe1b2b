"""One running saga on DBOS: implements the port by steps and messages of a workflow.

A step is one step of DBOS, which holds all attempts at it: what DBOS records is the record, never an exception. A
request to cancel is looked for in each attempt, so that what a replay sees is what was recorded.

Signals and requests to cancel come as messages under one topic, for DBOS waits for one topic at a time: so a wait for
a signal, and a pause, end when the saga is cancelled. Messages that were not waited for are kept in memory, which a
replay fills in the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar

import sqlalchemy as sa
from dbos import DBOS, AsyncSQLAlchemyDatasource, PortableWorkflowError, SQLAlchemyDatasource
from dbos import error as dbos_errors

from onefold._saga.saga_errors import Abort, CancelRequested, EngineFault, describe_stop
from onefold._saga.saga_values import Json
from onefold._saga.step_call import StepCall, describe
from onefold.errors import ConfigurationError

T = TypeVar("T")

TOPIC: Final = "onefold"
CANCEL: Final = "onefold.cancel"
STOPPED: Final = "onefold.stopped"
#: Prefix of operators' actions: an attribute for each, so that two at once do not overwrite each other.
AUDIT: Final = "onefold.audit."

#: The timeout of waits without one.
FOREVER_S: Final = 10 * 365 * 86_400.0

#: When a wait for a signal began, and when a pause did: DBOS waits for messages in both.
NOW: Final = "onefold:now"
PAUSE: Final = "onefold:pause"
END: Final = "onefold:end"


async def outside(work: Callable[[], Awaitable[T]]) -> T:
    """Call DBOS outside of any workflow, also from within one: else the call would be recorded as a step."""

    async def run() -> T:
        return await work()

    return await asyncio.get_running_loop().create_task(run(), context=contextvars.Context())


async def cancel_reason(saga_id: str) -> str | None:
    """The reason of a requested cancellation, read now; None: there is none."""
    found = await outside(
        lambda: DBOS.list_workflows_async(workflow_ids=[saga_id], load_input=False, load_output=False)
    )
    reason: str | None = (found[0].attributes or {}).get(CANCEL) if found else None
    return reason


class TransactionFailed(Exception):
    """A step in a transaction has failed and was rolled back. DBOS stores `data`, and gives it to a replay."""

    def __init__(self, text: str, *, aborted: bool) -> None:
        super().__init__(text)
        self.data = {"error": text, "aborted": aborted}


class SagaContext:
    """One run of a saga."""

    def __init__(self, saga_id: str, datasource: SQLAlchemyDatasource | AsyncSQLAlchemyDatasource | None) -> None:
        self._saga_id = saga_id
        self._datasource = datasource
        self._signals: defaultdict[str, deque[Json]] = defaultdict(deque)
        self._shielded = False

    async def run_step(self, call: StepCall) -> Json:
        async def attempts() -> Json:
            for number in range(1, call.retry.attempts_max + 1):
                if not call.undo and (reason := await cancel_reason(self._saga_id)) is not None:
                    return {"cancelled": reason}
                try:
                    return await call.attempt(last=number == call.retry.attempts_max)
                except Exception:
                    await asyncio.sleep(_pause_s(call, number))
            raise AssertionError("the last attempt gives a record")

        return self._read(await DBOS.run_step_async({"name": call.journal_name}, attempts))

    async def run_tx(self, call: StepCall) -> Json:
        if self._datasource is None:
            raise ConfigurationError(
                f"s.tx({call.step!r}, ...) needs your database: Dbos(..., database=engine), with a SQLAlchemy Engine "
                "or AsyncEngine; s.step(...) needs none"
            )
        call = replace(call, failures=[])
        for number in range(1, call.retry.attempts_max + 1):
            name = call.journal_name if number == 1 else f"{call.journal_name}:attempt:{number}"
            known, last = len(call.failures), number == call.retry.attempts_max
            try:
                return self._read(await self._transaction(self._datasource, name, call))
            except (TransactionFailed, PortableWorkflowError, sa.exc.DBAPIError) as error:
                text, aborted = _failure_of(error)
            if len(call.failures) == known:
                call.failures.append(text)  # from the journal: it was reported when it happened
            else:
                call.report_failure(text, last=last, aborted=aborted)
            if aborted or last:
                return call.failure(text, aborted=aborted)
            await DBOS.sleep_async(call.retry.backoff.ceiling_s(number, throttled=False))
        raise AssertionError("the last attempt gives a record")

    async def sleep(self, seconds: float) -> None:
        if self._shielded:
            await DBOS.sleep_async(seconds)
        else:
            await self._receive(None, seconds)

    async def wait_signal(self, signal: str, timeout_s: float | None) -> Json:
        if self._signals[signal]:
            return {"data": self._signals[signal].popleft()}
        return await self._receive(signal, timeout_s)

    async def cancel_requested(self) -> bool:
        return await cancel_reason(self._saga_id) is not None

    def shield(self) -> None:
        self._shielded = True

    async def _receive(self, signal: str | None, timeout_s: float | None) -> Json:
        """Take messages until the right one arrives, the time is over, or a cancellation is requested."""
        left_s, clock = FOREVER_S if timeout_s is None else timeout_s, PAUSE if signal is None else NOW
        # Recorded: a replay must wait for the remaining time, and take the same messages in the same calls.
        until = await _recorded_now(clock) + left_s
        while True:
            message = await DBOS.recv_async(TOPIC, timeout_seconds=left_s)
            if message is None:
                return None
            if "cancel" in message:
                raise CancelRequested(message["cancel"])
            if message["signal"] == signal:
                return {"data": message["data"]}
            self._signals[message["signal"]].append(message["data"])
            left_s = max(0.0, until - await _recorded_now(clock))

    async def _transaction(
        self, datasource: SQLAlchemyDatasource | AsyncSQLAlchemyDatasource, name: str, call: StepCall
    ) -> Json:
        reason = None if call.undo else await cancel_reason(self._saga_id)
        args = call.arguments(after=1)
        ran = False

        def done(value: object) -> Json:
            nonlocal ran
            ran = True
            return call.record(value)

        def failed(error: Exception) -> Exception:
            call.failures.append(describe(error))
            if isinstance(error, sa.exc.DBAPIError):
                return error  # DBOS repeats the transaction where the database requires it
            return TransactionFailed(describe(error), aborted=isinstance(error, Abort))

        if isinstance(datasource, AsyncSQLAlchemyDatasource):
            _check_colour(call, asynchronous=True)

            async def work() -> Json:
                if reason is not None:
                    return {"cancelled": reason}
                try:
                    with call.running():
                        value = await call.function(datasource.sql_session(), *args)
                        await datasource.sql_session().flush()
                except Exception as error:
                    raise failed(error) from error
                return done(value)

            record = await datasource.run_tx_step_async({"name": name}, work)
        else:
            _check_colour(call, asynchronous=False)

            def work_in_thread() -> Json:
                if reason is not None:
                    return {"cancelled": reason}
                try:
                    with call.running():
                        value = call.function(datasource.sql_session(), *args)
                        datasource.sql_session().flush()
                except Exception as error:
                    raise failed(error) from error
                return done(value)

            record = await asyncio.to_thread(lambda: datasource.run_tx_step({"name": name}, work_in_thread))
        if ran:
            call.report_attempt("done")  # and committed; not an answer from the journal
        return record

    def _read(self, record: Json) -> Json:
        if "cancelled" in record:
            raise CancelRequested(record["cancelled"])
        return record


async def end_journal(saga_id: str) -> None:
    """Record that the saga's function has ended. Where its journal goes on instead, another function has written it:
    DBOS itself would not notice, and have the saga complete with steps that its code does not know."""

    async def nothing() -> None: ...

    try:
        await DBOS.run_step_async({"name": END}, nothing)
    except dbos_errors.DBOSUnexpectedStepError as error:
        raise EngineFault(
            f"{describe_stop(saga_id)}its function has ended, and its journal goes on "
            f"({error}). Another order of steps needs another version"
        ) from error


async def _recorded_now(name: str) -> float:
    async def now() -> float:
        return time.time()

    return await DBOS.run_step_async({"name": name}, now)


def _failure_of(error: TransactionFailed | PortableWorkflowError | sa.exc.DBAPIError) -> tuple[str, bool]:
    """The error of a transaction, from its own run or from the journal. A database error outside of the user's
    statements is the engine's, and raised."""
    if isinstance(error, sa.exc.DBAPIError):
        if error.connection_invalidated:
            raise error
        return describe(error), False
    data = error.data if isinstance(error.data, dict) else {}
    return str(data.get("error", error)), bool(data.get("aborted"))


def _pause_s(call: StepCall, number: int) -> float:
    return call.retry.backoff.wait_s(number, throttled=False, draw=random.random)


def _check_colour(call: StepCall, *, asynchronous: bool) -> None:
    if inspect.iscoroutinefunction(call.function) != asynchronous:
        needed = (
            "an `async def`, for database= is an AsyncEngine" if asynchronous else "a `def`, for database= is an Engine"
        )
        raise ConfigurationError(f"step {call.journal_name!r}: {call.function.__qualname__} must be {needed}")
