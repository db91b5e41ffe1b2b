"""Giving a connection back to a psycopg pool, whatever class of the application's that is.

A pool class of the application's own may wrap `putconn`: set a context variable, have a time limit, write a metric when
the connection is back. So on asyncio its coroutine runs whole, in one task and one context. And where it raises, it is
not known on which side of psycopg's own `putconn` that was: another request may have the connection by now, so nothing
is done with it any more. If it was before, a place of the pool is lost, as it is for any other user of such a pool.
"""

from __future__ import annotations

import asyncio
import sys
from types import FunctionType
from typing import Any, Final

import psycopg
from psycopg_pool import AsyncConnectionPool, AsyncNullConnectionPool

from onefold._kernel.checkout import log_release_error
from onefold._kernel.executors import begin_in_background
from onefold.db._shielded import run_to_end

_LEFT_AS_IT_IS: Final = (
    "onefold did not close it, because the pool may have it and have handed it on; if the pool does not have it, a "
    "place of the pool is lost"
)


def _as_written(kind: type[Any]) -> Any:
    """A class's `putconn`, if no tool has replaced it."""
    function: Any = kind.putconn
    file = getattr(sys.modules.get(AsyncConnectionPool.__module__), "__file__", None)
    is_own = type(function) is FunctionType and function.__code__.co_filename == file
    return function if is_own else None


#: psycopg's own pools, and how they take a connection back: in few steps, which call no code of the application's.
_OWN: Final = {kind: _as_written(kind) for kind in (AsyncConnectionPool, AsyncNullConnectionPool)}


def give_back(pool: Any, connection: Any) -> None:
    """Give a connection back. What that raises is logged."""
    try:
        pool.putconn(connection)
    except Exception as error:
        log_release_error(error, _LEFT_AS_IT_IS)


async def give_back_async(pool: Any, connection: Any) -> None:
    """`give_back` to its end, also if this task is cancelled: while `putconn` waits for the pool's lock, the connection
    has neither gone back nor been replaced."""
    work = _put(pool, connection)
    if _is_all_psycopgs(pool, connection):
        await run_to_end(work)
    else:
        await asyncio.shield(begin_in_background(work))


async def _put(pool: Any, connection: Any) -> None:
    try:
        await pool.putconn(connection)
    except Exception as error:
        log_release_error(error, _LEFT_AS_IT_IS)


def _is_all_psycopgs(pool: Any, connection: Any) -> bool:
    """Whether nothing but psycopg's own code runs, which may begin in one task and end in another."""
    own = _OWN.get(type(pool))
    is_own = own is not None and getattr(pool.putconn, "__func__", None) is own
    return is_own and type(connection) is psycopg.AsyncConnection
