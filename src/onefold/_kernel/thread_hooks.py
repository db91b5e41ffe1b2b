"""Hooks that a plain `def` asked for: they may block, and so are called on a thread, also where the end of their
transaction is awaited on a loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


class ThreadHook:
    """Such a hook. Called, it is awaited; what has threads of its own calls `func` on one of them instead."""

    __slots__ = ("func",)

    def __init__(self, func: Callable[[], Any]) -> None:
        self.func = func

    async def __call__(self) -> Any:
        result = await asyncio.to_thread(self.func)
        return await result if inspect.isawaitable(result) else result
