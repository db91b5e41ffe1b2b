"""Executes a saga: the same code on every engine.

Theory of operation. The engine calls `run_saga`, again from the beginning after every crash. Each step registers its
compensation before it is run: a crash in between undoes what never applied, which compensations tolerate, and never
keeps what did. A step that failed, an `Abort` of the saga or a request to cancel begins the compensations: in reverse
order, each tried until it succeeds. Everything else that the function raises is a mistake in it, and stops the saga.

The outcome is a value (`{"outcome": "completed", ...}`), so that all engines keep the same of it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar

from onefold._kernel.results import result_type_of
from onefold._kernel.telemetry import Listener
from onefold._policy.ranges import require
from onefold._policy.retry import RetryPolicy
from onefold._saga.definition import AnySaga, Start
from onefold._saga.engine_context import EngineContext
from onefold._saga.local_effects import effects_database
from onefold._saga.saga_errors import Abort, CancelRequested, EngineFault, SignalTimedOut, StepFailed, describe_stop
from onefold._saga.saga_names import check_name
from onefold._saga.saga_telemetry import StuckSagas
from onefold._saga.saga_values import Json, decode, encode, parameter_types
from onefold._saga.step_call import StepCall, describe
from onefold.errors import ConfigurationError, ResultNotSerializable, ResultUnreadable

STEP_RETRY: Final = RetryPolicy()
SLEEP_S_MAX: Final = 10 * 365 * 86_400

Runner: TypeAlias = Callable[[StepCall], Any]

T = TypeVar("T")


class Saga:
    """The argument of a saga's function, for steps, pauses and signals, one at a time. The engine makes it, from the
    `definition`, the saga's `start`, itself (`engine`), its `listener`, and its counter of stuck sagas (`stuck`)."""

    __slots__ = (
        "_busy",
        "_definition",
        "_engine",
        "_fault",
        "_listener",
        "_start",
        "_steps",
        "_stuck",
        "_unawaited",
        "_undos",
    )

    def __init__(
        self,
        definition: AnySaga,
        start: Start,
        engine: EngineContext,
        listener: Listener | None,
        stuck: StuckSagas | None,
    ) -> None:
        self._definition = definition
        self._start = start
        self._engine = engine
        self._listener = listener
        self._stuck = StuckSagas(None) if stuck is None else stuck
        self._steps: set[str] = set()
        self._undos: list[tuple[Runner, StepCall]] = []
        self._busy = ""
        self._fault: BaseException | None = None
        #: Operations that were called and not begun: coroutines that were not awaited.
        self._unawaited: list[str] = []

    @property
    def id(self) -> str:
        """The saga's id."""
        return self._start.saga_id

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        undo: Callable[..., Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Run a `function` once, as far as engines can: its result is recorded, and it is not run again. In it `key()`
        is its idempotency key, for a crash before the record is written has it run again.

        `undo` gets the same arguments, and runs when the saga is compensated, also where the step failed or was never
        run to its end. Arguments and results are JSON. Of `retry` attempts_max and backoff hold, and attempt_s for an
        `async def`: a function on a thread cannot be broken off.
        """
        run = functools.partial(self._run, self._engine.run_step, 0, name, function, args, undo, retry)
        return self._begin(f"step {name!r}", run)

    def tx(
        self,
        name: str,
        function: Callable[..., Any],
        *args: Any,
        undo: Callable[..., Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """A step in a transaction of your database, which commits together with its record: it happens once without a
        key. The `function`, and its `undo`, get a session first; `retry` is as that of `step`. Only on engines that
        share the database: DBOS."""
        run = functools.partial(self._run, self._engine.run_tx, 1, name, function, args, undo, retry)
        return self._begin(f"step {name!r}", run)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Pause for `seconds`, however many: the engine's timer survives the process."""
        return self._begin("s.sleep(...)", functools.partial(self._sleep, seconds))

    async def _sleep(self, seconds: float) -> None:
        self._check("s.sleep(...)")
        self._refuse(lambda: require("seconds", seconds, most=SLEEP_S_MAX))
        await self._await_engine("s.sleep(...)", self._engine.sleep(seconds))

    def wait(self, signal: str, *, timeout_s: float | None = None) -> Coroutine[Any, Any, Any]:
        """The data of a `signal` that was sent to this saga, before or after now. SignalTimedOut after `timeout_s`."""
        what = f"s.wait({signal!r})"
        return self._begin(what, functools.partial(self._wait, what, signal, timeout_s))

    async def _wait(self, label: str, signal: str, timeout_s: float | None) -> Any:
        self._check(label)
        self._refuse(lambda: check_name(signal, "signal"))
        if timeout_s is not None:
            limit_s = timeout_s
            self._refuse(lambda: require("timeout_s", limit_s, most=SLEEP_S_MAX))
        answer = await self._await_engine(label, self._engine.wait_signal(signal, timeout_s))
        if answer is None:
            raise SignalTimedOut(f"signal {signal!r} did not come within {timeout_s:g} s")
        return answer["data"]

    async def compensate(self) -> None:
        """Undo what was begun, in reverse order; each compensation is tried until it succeeds."""
        self._engine.shield()
        while self._undos:
            run, call = self._undos.pop()
            try:
                await self._undo(run, call)
            finally:
                self._stuck.remove(self._start)

    async def _undo(self, run: Runner, call: StepCall) -> None:
        for number in count(1):
            attempts = replace(call, round=number, failures=[])
            if "error" not in await self._await_engine(f"the compensation of step {call.step!r}", run(attempts)):
                return
            self._stuck.add(self._start)
            pause_s = self._definition.undo_pause.ceiling_s(number, throttled=False)
            await self._await_engine("the pause of a compensation", self._engine.sleep(pause_s))

    async def _run(
        self,
        run: Runner,
        leading: int,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        undo: Callable[..., Any] | None,
        retry: RetryPolicy | None,
    ) -> Any:
        """`leading`: how many arguments the engine puts before the step's own: the session of a transaction."""
        label = f"step {name!r}"
        self._check(label)
        self._refuse(lambda: self._check_step(name, function, undo, retry))
        self._refuse(lambda: _check_arguments(name, function, undo, leading, len(args)))
        types = parameter_types(function, len(args), after=leading)
        try:
            encoded = tuple(
                encode(arg, annotation, what=f"argument {number} of {label}")
                for number, (arg, annotation) in enumerate(zip(args, types, strict=True), start=1)
            )
        except ResultNotSerializable as error:
            raise self._stop(str(error)) from None
        call = self._call(name, function, encoded, retry or STEP_RETRY)
        if undo is not None:
            # Before the step: a crash while it runs must find its compensation.
            self._undos.append((run, self._call(name, undo, encoded, self._definition.undo_retry, undo=True)))
        record = await self._await_engine(label, run(call))
        try:
            return call.read(record)
        except ResultUnreadable as error:
            raise self._stop(str(error)) from None

    def _begin(self, what: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Coroutine[Any, Any, T]:
        """A coroutine for the operation. One that is not awaited does not run, and the saga's end reports it."""
        self._unawaited.append(what)

        async def begin() -> T:
            self._unawaited.remove(what)
            return await work()

        return begin()

    def _call(
        self, name: str, function: Callable[..., Any], args: tuple[Json, ...], retry: RetryPolicy, *, undo: bool = False
    ) -> StepCall:
        return StepCall(
            saga=self._definition.name,
            saga_id=self.id,
            step=name,
            function=function,
            args=args,
            retry=retry,
            undo=undo,
            listener=self._listener,
        )

    def _check_step(self, name: str, function: object, undo: object, retry: object) -> None:
        if callable(name) and isinstance(function, str):
            shown = getattr(name, "__name__", type(name).__name__)
            raise ConfigurationError(
                f"s.step({shown}, {function!r}, ...) has its arguments swapped: write s.step({function!r}, {shown}, "
                "...)"
            )
        check_name(name, "step name")
        if name in self._steps:
            raise ConfigurationError(
                f"step {name!r} is there twice, and both would have one key: give each its own name"
            )
        for what, value in (("the function", function), ("undo", undo)):
            if not callable(value) and not (what == "undo" and value is None):
                raise ConfigurationError(f"{what} of step {name!r} is {value!r}, which cannot be called")
        if (database := effects_database(undo)) is not None and effects_database(function) is not database:
            raise ConfigurationError(
                f"undo of step {name!r} is made by effects.undo, which undoes what effects.apply of the same database "
                "has applied, and its function is none of those: the compensation would find nothing to undo"
            )
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise ConfigurationError(f"retry={retry!r} of step {name!r} must be a RetryPolicy, or None")
        self._steps.add(name)

    async def _await_engine(self, what: str, answer: Any) -> Any:
        """Await the engine. Any error but a failed step ends the saga, even if its function catches it."""
        self._busy = what
        try:
            return await answer
        except Exception as error:
            raise self._stop(f"the engine failed at {what}: {describe(error)}") from error
        except BaseException as error:
            self._fault = error
            raise
        finally:
            self._busy = ""

    def _check(self, what: str) -> None:
        if self._fault is not None:
            raise self._fault
        if self._busy:
            raise self._stop(
                f"{what} begins while {self._busy} is not done: a compensation could run beside a step. Await "
                "one after the other"
            )

    def _raise_fault(self) -> None:
        """Raise what ended the saga, also where its function has caught it and goes another way: neither a result nor
        a compensation of code that did not see its step through may follow."""
        if self._fault is None and self._unawaited:
            raise self._stop(
                f"its function did not await {self._unawaited[0]}, which therefore did not happen: write `await s.step"
                "(...)`. Repaired, it goes on from the same place"
            )
        if self._fault is None:
            return
        if isinstance(self._fault, asyncio.CancelledError) and not _is_task_cancelled():
            raise self._stop(
                "its function cancelled what it waited for (asyncio.timeout, wait_for, a task). Limit a step by "
                "retry=RetryPolicy(attempt_s=...), and s.wait by timeout_s="
            ) from None
        raise self._fault

    def _refuse(self, check: Callable[[], object]) -> None:
        try:
            check()
        except ConfigurationError as error:
            raise self._stop(str(error)) from None

    def _stop(self, why: str) -> EngineFault:
        fault = EngineFault(f"{describe_stop(self.id)}{why}")
        self._fault = fault
        return fault


def _check_arguments(
    name: str, function: Callable[..., Any], undo: Callable[..., Any] | None, leading: int, count: int
) -> None:
    """Refuse functions that do not take these arguments: a compensation would fail for ever, after its step has
    happened."""
    for role, each in (("", function), ("its undo ", undo)):
        if each is None:
            continue
        try:
            signature = inspect.signature(each)
        except (TypeError, ValueError):  # written in C
            continue
        try:
            signature.bind(*[None] * (leading + count))
        except TypeError as error:
            shown = getattr(each, "__name__", type(each).__name__)
            session = "a session and " if leading else ""
            raise ConfigurationError(
                f"step {name!r} gives {role}{shown}{signature} what it does not take ({error}): a step and its undo "
                f"are called with {session}the arguments of the step, here {count}"
            ) from None


async def run_saga(
    definition: AnySaga,
    start: Start,
    engine: EngineContext,
    *,
    listener: Listener | None = None,
    stuck: StuckSagas | None = None,
) -> Json:
    """Run a saga to its outcome. EngineFault, or another BaseException of the engine: it has none yet. The listener
    gets the attempts that are made in this process."""
    s = Saga(definition, start, engine, listener, stuck)
    identity = {"saga": start.saga, "version": start.version}
    cancelled = False
    try:
        value = await _call(definition, start, s)
        return {"outcome": "completed", "result": _encode_result(definition, s, value), **identity}
    except (StepFailed, Abort) as error:
        error_text = str(error) if isinstance(error, StepFailed) else describe(error)
    except CancelRequested as error:
        error_text, cancelled = str(error), True
    except Exception as error:
        # Not a failed step but a mistake in the function. If an operator has cancelled the saga, it is compensated.
        if not await s._await_engine("the check for a cancellation", engine.cancel_requested()):
            raise EngineFault(
                f"{describe_stop(s.id)}its function {definition.function.__qualname__} raised "
                f"{describe(error)}. Repaired under the same version it goes on from the same place"
            ) from error
        error_text, cancelled = f"cancelled after {describe(error)}", True
    await s.compensate()
    return {"outcome": "compensated", "error": error_text, "cancelled": cancelled, **identity}


async def _call(definition: AnySaga, start: Start, s: Saga) -> Any:
    """Call the saga's function with its decoded input."""
    [annotation] = parameter_types(definition.function, 1, after=1)
    try:
        return await definition.function(s, decode(start.input, annotation, what="its input"))
    finally:
        s._raise_fault()


def _is_task_cancelled() -> bool:
    """Whether the engine cancels the whole saga: it does so by its task."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


def _encode_result(definition: AnySaga, s: Saga, value: object) -> Json:
    try:
        return encode(value, result_type_of(definition.function), what="its result")
    except ResultNotSerializable as error:
        raise EngineFault(f"{describe_stop(s.id)}{error}. All of its steps are done: repaired it completes") from None
