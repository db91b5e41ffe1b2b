"""What a handler wants done after its transaction has ended: in the order it was asked for, each at most once.

A hook is no part of the transaction: a process that dies between COMMIT and hook has not run it. What must not get lost
is an event (`tx.publish`), which commits with the rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextvars import copy_context
from enum import Enum
from functools import partial
from typing import Any

from onefold.errors import ProgrammerError


class Due(Enum):
    """After which end of the transaction a hook runs."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: Asked for on rollback, in a savepoint that was rolled back: its work is gone, however the rest ends.
    BOTH = "both"


def bind_arguments(call: str, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """The hook with its arguments. Refuses what a call of it has returned: it has been called too early."""
    if not callable(function):
        if inspect.iscoroutine(function):
            function.close()  # or Python warns that nothing has awaited it
        raise ProgrammerError(
            f"{call}: {function!r:.200} is not a function; give the function and its arguments, without calling it: "
            f"{call}(send, order_id), not {call}(send(order_id))"
        )
    return partial(function, *args, **kwargs)


class Hooks:
    """The hooks of one transaction."""

    __slots__ = ("_hooks",)

    def __init__(self) -> None:
        self._hooks: list[tuple[Due, Callable[[], Any]]] = []

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, due: Due, call: Callable[[], Any]) -> None:
        self._hooks.append((due, call))

    def cut(self, length: int) -> None:
        """The hooks after the first `length` belonged to a part that is rolled back: of these, only those for a
        rollback stay."""
        since = self._hooks[length:]
        self._hooks[length:] = [(Due.BOTH, call) for due, call in since if due is not Due.COMMIT]

    def take_next(self, due: Due) -> Callable[[], Any] | None:
        """The next hook that this end brings. It is forgotten, and so are those before it that are for another end."""
        while self._hooks:
            when, call = self._hooks.pop(0)
            if when in (due, Due.BOTH):
                return call
        return None


class ThreadHook:
    """A hook that a plain `def` asked for: it may block, and so is called on a thread, also where the end of its
    transaction is awaited on a loop. Called, it is awaited; what has threads of its own calls `func` on one of them.

    Each has a thread of its own. Those of the loop (`asyncio.to_thread`) are few, and look up the names of hosts,
    too: a few hooks that hang would hold up everything else, and the process would not end before they return.
    """

    __slots__ = ("func",)

    def __init__(self, func: Callable[[], Any]) -> None:
        self.func = func

    async def __call__(self) -> Any:
        from onefold._kernel.serial_thread import SerialThread

        result = await SerialThread("onefold-hook").run(partial(copy_context().run, self.func))
        return await result if inspect.isawaitable(result) else result
