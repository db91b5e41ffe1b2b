"""Calls a consumer's handler within its time limit, and never takes a handler's cancellation for a stop.

Theory of operation. An `async def` that is not done in time is cancelled where it waits; that is a failure of its
message, like any other. A plain `def` runs on a thread, which nothing can stop: at the time limit its message has
failed and its transaction is ended, so that nothing waits for what it locked and nothing it still writes is kept; the
thread is left behind. With `concurrency` threads left behind the consumer calls no handler until one of them returns:
further ones would hang, too.

`overdue` reports calls past their limit (a thread left behind, a handler that ignores its cancellation) to health
checks: then a new process is the way out.

A CancelledError that comes out of a handler although the consumer does not end (a future that was cancelled elsewhere,
a handler that cancels its own task) is the handler's failure, too, and so is whatever else no `except Exception`
catches, `sys.exit()` included. Taken for a stop, it would end the worker that called it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable
from contextvars import copy_context
from operator import itemgetter
from typing import Any, Final

from onefold._inbox.consumer import Consumer
from onefold._inbox.handler_call import Invocation
from onefold._inbox.handler_transaction import HandlerTookTooLong
from onefold._kernel.end_hooks import ThreadHook
from onefold._kernel.executors import name_of, runs_a_loop
from onefold._kernel.messages import Message
from onefold._kernel.serial_thread import SerialThread
from onefold._worker.cancellation import may_go_on
from onefold.errors import OnefoldError

#: How many hooks may be left behind on threads. Each costs one; further ones are not called.
HOOKS_BEHIND_MAX: Final = 64

_log = logging.getLogger("onefold.consumer")


class HandlerCancelled(OnefoldError):
    """A handler raised CancelledError, and the consumer did not end it."""


class HandlerAborted(OnefoldError):
    """A handler raised something that is not an Exception."""


class HookNotCalled(OnefoldError):
    """Too many hooks of a consumer do not return."""


class HandlerCalls:
    """The calls of one consumer's handler, and since when each is under way."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._perform = self._await if consumer.is_async else self._on_thread
        #: The running calls: the id of the (first) message, and since when.
        self._under_way: dict[object, tuple[str, float]] = {}
        self._idle: list[SerialThread] = []
        #: Invocations whose threads have not returned, and the work to do there when they do.
        self._behind: dict[Invocation, list[Callable[[], Any]]] = {}
        #: How many hooks are on threads at this moment.
        self._hooks_under_way = 0
        #: Whether another call may begin.
        self.room = asyncio.Event()
        self.room.set()
        #: Set when a thread that was left behind returns.
        self.returned = asyncio.Event()

    async def __call__(self, invocation: Invocation, work: Callable[[], Any]) -> Any:
        """Do a part of an invocation: call the handler, or close what was opened for it."""
        if invocation in self._behind:  # its thread still uses what this would close
            self._behind[invocation].append(work)
            return None
        try:
            return await self._perform(invocation, work)
        except asyncio.CancelledError as error:
            if not may_go_on():
                raise
            raise HandlerCancelled(
                f"the handler of consumer {self._consumer.name!r} raised CancelledError, though the consumer did not "
                "end it: something it waited for was cancelled elsewhere, or it has cancelled its own task"
            ) from error
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            if not runs_a_loop():  # the loop is gone, and this coroutine is being discarded
                raise
            raise self._abort_error(error) from error

    def limit_hook(self, hook: Callable[[], Any]) -> Callable[[], Any]:
        """The hook with the time limit of the handler, whose slot it holds."""
        limit_s = self._consumer.limit_s or self._consumer.lease_s

        async def call() -> Any:
            try:
                async with asyncio.timeout(limit_s) as limit:
                    result = self._on_hook_thread(hook.func) if isinstance(hook, ThreadHook) else hook()
                    return await result if inspect.isawaitable(result) else result
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimeoutError(
                    f"the hook took longer than the time limit of its handler, {limit_s:g} s, and is not waited for"
                ) from error

        call.__qualname__ = name_of(hook)  # what the log calls it by
        return call

    async def _on_hook_thread(self, hook: Callable[[], Any]) -> Any:
        """Call a hook on a thread of ours. The loop's own threads are few, a hook that hangs would block everything
        else that needs one, and the process does not end before they return."""
        behind = self._hooks_under_way - self._consumer.concurrency
        if behind >= HOOKS_BEHIND_MAX:
            raise HookNotCalled(
                f"it was not called: {behind} hooks of consumer {self._consumer.name!r} or more are on threads that do "
                "not return, which nothing can stop. Restart the process, and give what they wait for a time-out"
            )
        thread = self._idle.pop() if self._idle else SerialThread("onefold-handler")
        answer = thread.run(functools.partial(copy_context().run, self._contain, hook))
        self._hooks_under_way += 1

        def returned(answer: asyncio.Future[Any]) -> None:
            self._hooks_under_way -= 1
            self._idle.append(thread)
            if not answer.cancelled():
                answer.exception()  # retrieved: a task that no longer waits got a TimeoutError instead

        answer.add_done_callback(returned)
        result = await asyncio.shield(answer)
        return await result if inspect.isawaitable(result) else result

    def overdue(self) -> dict[str, float]:
        """For each message whose handler should have ended by now: for how many seconds it has been running."""
        now, limit_s = time.monotonic(), self._consumer.limit_s
        if limit_s is None:
            return {}
        running = ((name, now - since) for name, since in self._under_way.values())
        return {name: seconds for name, seconds in sorted(running, key=itemgetter(1)) if seconds > limit_s}

    def is_behind(self, message: Message | None) -> bool:
        """Whether a thread that was left behind still handles this message. Then `returned` tells when one returns."""
        if message is None or not any(message.id == each.id for behind in self._behind for each in behind.messages):
            return False
        self.returned.clear()
        return True

    def end(self) -> None:
        while self._idle:
            self._idle.pop().end()

    async def _await(self, invocation: Invocation, work: Callable[[], Any]) -> Any:
        done = self._begin(invocation)
        try:
            async with asyncio.timeout(self._consumer.limit_s) as limit:
                result = await work()
                await _raise_own_cancellation()
                return result
        except TimeoutError as error:
            if limit.expired():
                raise self._timeout_error() from error
            raise
        finally:
            done()

    async def _on_thread(self, invocation: Invocation, work: Callable[[], Any]) -> Any:
        done = self._begin(invocation)
        thread = self._idle.pop() if self._idle else SerialThread("onefold-handler")
        answer = thread.run(functools.partial(copy_context().run, self._contain, work))
        answer.add_done_callback(lambda _: done())
        try:
            async with asyncio.timeout(self._consumer.limit_s):
                result = await asyncio.shield(answer)
        except BaseException as error:
            if answer.done():
                self._idle.append(thread)
                raise
            self._leave_behind(thread, answer, invocation)
            if isinstance(error, TimeoutError):
                raise self._timeout_error() from error
            raise
        self._idle.append(thread)
        return result

    def _contain(self, work: Callable[[], Any]) -> Any:
        """Run `work` on its thread, and wrap a GeneratorExit, which would tear down the coroutines that wait for it."""
        try:
            return work()
        except (Exception, asyncio.CancelledError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise self._abort_error(error) from error

    def _begin(self, invocation: Invocation) -> Callable[[], object]:
        call = object()
        self._under_way[call] = (invocation.messages[0].id, time.monotonic())
        return functools.partial(self._under_way.pop, call)

    def _leave_behind(self, thread: SerialThread, answer: asyncio.Future[Any], invocation: Invocation) -> None:
        self._behind[invocation] = []
        if len(self._behind) >= self._consumer.concurrency:
            self.room.clear()
            _log.error(
                "consumer %r handles nothing: %d of its handlers are past their time limit, on threads that cannot be "
                "stopped; it goes on when one returns. Restart the process, and give what they wait for a time-out",
                self._consumer.name, len(self._behind),
            )  # fmt: skip

        def returned(answer: asyncio.Future[Any]) -> None:
            if not answer.cancelled():
                answer.exception()  # retrieved: its message has failed already
            for work in self._behind.pop(invocation):
                thread.submit(functools.partial(_close, work, self._consumer.name, invocation.messages[0].id))
            thread.end()
            self.returned.set()
            if len(self._behind) < self._consumer.concurrency:
                self.room.set()

        answer.add_done_callback(returned)

    def _abort_error(self, error: BaseException) -> HandlerAborted:
        raised = f"{type(error).__name__}: {error}"
        return HandlerAborted(f"the handler of consumer {self._consumer.name!r} raised {raised}")

    def _timeout_error(self) -> HandlerTookTooLong:
        setting = "lease_s" if self._consumer.timeout_s is None else "timeout_s"
        left = "" if self._consumer.is_async else "; its thread cannot be stopped, and is left behind"
        return HandlerTookTooLong.of(self._consumer, setting, self._consumer.limit_s or 0.0, left)


async def _raise_own_cancellation() -> None:
    """Raise the cancellation of a handler that cancelled its own task here, and not at whatever awaits next."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


def _close(work: Callable[[], Any], consumer: str, message_id: str) -> None:
    """Close a dependency on a thread that has returned late."""
    try:
        work()
    except Exception:
        _log.exception(
            "consumer %r: a dependency of message %s, which took too long, failed while it was closed; the message has "
            "failed already", consumer, message_id,
        )  # fmt: skip
