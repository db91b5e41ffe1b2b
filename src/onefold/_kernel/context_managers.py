"""Blocks that are entered with `with`, or with `async with`, and say which when the other one is written.

Their declared type offers the right one only, so that a type checker finds the mistake as well.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Generic, Never, ParamSpec, TypeVar

from onefold.errors import ConfigurationError

P = ParamSpec("P")
T = TypeVar("T")


class _OnThreads(Generic[T]):
    """Entered with `with`."""

    def __init__(self, inner: AbstractContextManager[T, Any], name: str) -> None:
        self._inner = inner
        self._name = name

    def __enter__(self) -> T:
        return self._inner.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return self._inner.__exit__(kind, error, trace)

    async def __aenter__(self) -> Never:
        raise ConfigurationError(
            f"{self._name} of Onefold is entered with `with {self._name}`, without async: Onefold is for threads. In "
            f"async code use AsyncOnefold, and `async with {self._name}`"
        )

    async def __aexit__(self, *_: object) -> None: ...

    def __await__(self) -> Never:
        raise ConfigurationError(f"{self._name} of Onefold is not awaited, but entered: `with {self._name}`")


class _OnTasks(Generic[T]):
    """Entered with `async with`."""

    def __init__(self, inner: AbstractAsyncContextManager[T, Any], name: str) -> None:
        self._inner = inner
        self._name = name

    async def __aenter__(self) -> T:
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return await self._inner.__aexit__(kind, error, trace)

    def __enter__(self) -> Never:
        raise ConfigurationError(
            f"{self._name} of AsyncOnefold is entered with `async with {self._name}`, inside an async function. "
            f"Without asyncio (threads, a script) use Onefold, and `with {self._name}`"
        )

    def __exit__(self, *_: object) -> None: ...

    def __await__(self) -> Never:
        raise ConfigurationError(f"{self._name} of AsyncOnefold is not awaited, but entered: `async with {self._name}`")


def on_threads(inner: AbstractContextManager[T, Any], name: str) -> AbstractContextManager[T]:
    """The same block, which refuses `async with` in words. `name` is what is written: once.relaying()."""
    return _OnThreads(inner, name)


def on_tasks(inner: AbstractAsyncContextManager[T, Any], name: str) -> AbstractAsyncContextManager[T]:
    """The same block, which refuses `with` in words."""
    return _OnTasks(inner, name)


def thread_block(name: str) -> Callable[[Callable[P, Iterator[T]]], Callable[P, AbstractContextManager[T]]]:
    """`contextlib.contextmanager`, for a block of Onefold."""

    def decorate(function: Callable[P, Iterator[T]]) -> Callable[P, AbstractContextManager[T]]:
        managed = contextmanager(function)

        @functools.wraps(function)
        def make_block(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[T]:
            return on_threads(managed(*args, **kwargs), name)

        return make_block

    return decorate


def task_block(name: str) -> Callable[[Callable[P, AsyncIterator[T]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """`contextlib.asynccontextmanager`, for a block of AsyncOnefold."""

    def decorate(function: Callable[P, AsyncIterator[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
        managed = asynccontextmanager(function)

        @functools.wraps(function)
        def make_block(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
            return on_tasks(managed(*args, **kwargs), name)

        return make_block

    return decorate
