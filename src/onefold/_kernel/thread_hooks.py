"""Hooks that a plain `def` asked for: they may block, and so are called on a thread, also where the end of their
transaction is awaited on a loop.

Each has a thread of its own. Those of the loop (`asyncio.to_thread`) are few, and look up the names of hosts, too: a
few hooks that hang would hold up everything else, and the process would not end before they return.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any


class ThreadHook:
    """Such a hook. Called, it is awaited; what has threads of its own calls `func` on one of them instead."""

    __slots__ = ("func",)

    def __init__(self, func: Callable[[], Any]) -> None:
        self.func = func

    async def __call__(self) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        call = partial(_call, partial(copy_context().run, self.func), loop, answer)
        threading.Thread(target=call, name="onefold-hook", daemon=True).start()
        result = await answer
        return await result if inspect.isawaitable(result) else result


def _call(hook: Callable[[], Any], loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any]) -> None:
    try:
        result = hook()
    except StopIteration as error:  # no future takes one
        tell: Callable[[], None] = partial(_fail, answer, RuntimeError(f"a hook raised StopIteration: {error}"))
    except BaseException as error:
        tell = partial(_fail, answer, error)
    else:
        tell = partial(_answer, answer, result)
    with suppress(RuntimeError):  # the loop is closed: nothing waits for it any more
        loop.call_soon_threadsafe(tell)


def _answer(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.cancelled():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: BaseException) -> None:
    if not answer.cancelled():
        answer.set_exception(error)
