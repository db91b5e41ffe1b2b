"""asyncpg: a pool of the application's, or one of our own.

The ways to use it are two. `_asyncpg_public` is right for every version. `_asyncpg_fast` needs fewer round trips and
less CPU, by asyncpg's private names, and is taken for the versions that it was tested with.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from onefold._kernel.extras import missing_extra

try:
    import asyncpg
except ModuleNotFoundError as error:
    raise missing_extra(error, "asyncpg") from None

from onefold._kernel.executors import in_background, runs_a_loop
from onefold._kernel.fork_and_loop import PerLoop, watch_forks
from onefold.db._asyncpg_public import VENDOR_ERRORS, PublicConnection, PublicPool
from onefold.db._opened_elsewhere import Connections, elsewhere
from onefold.db._postgres_session import FIND_TABLES, Place, check_dsn, connect_error, none_free
from onefold.errors import ConfigurationError, OnefoldError

if TYPE_CHECKING:
    from onefold.db._asyncpg_fast import FastConnection, FastPool

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"
AsyncpgConnection: TypeAlias = "FastConnection | PublicConnection"

__all__ = ["AsyncpgDatabase"]


class AsyncpgDatabase:
    """A `pool` of asyncpg connections: the application's own, or one opened from a DSN on first use. A connection is
    waited for at most `acquire_timeout_s`; the end of those that are in use, when a pool of its own is closed,
    `close_timeout_s`."""

    dialect = "postgres"

    def __init__(self, pool: Pool | str, *, acquire_timeout_s: float = 10.0, close_timeout_s: float = 10.0) -> None:
        self._dsn = check_dsn(pool) if isinstance(pool, str) else None
        self._pool: Any = None if isinstance(pool, str) else pool
        self._fast = _fast_pool()
        #: Where the application's pool is used. asyncpg has no public name for the loop that it belongs to.
        self._loop = asyncio.get_running_loop() if runs_a_loop() else None
        #: Whether it had connections when this process was forked.
        self._was_open = False
        watch_forks(self)
        self._opened = PerLoop(_Opened, _Opened.drop)
        self._acquire_timeout_s = acquire_timeout_s
        self._close_timeout_s = close_timeout_s
        self._place = Place()

    async def acquire(self) -> AsyncpgConnection:
        try:
            opened = self._opened.here()
            pool = opened.pool or await self._open(opened)
            proxy: Any = pool.at_hand() or await pool.take()
        except asyncpg.exceptions.ClientConfigurationError:
            # Not chained: asyncpg quotes what it could not read, which may be a password.
            raise ConfigurationError("asyncpg cannot read the Postgres DSN") from None
        except TimeoutError as error:
            raise none_free(self._acquire_timeout_s) from error
        except VENDOR_ERRORS as error:
            raise connect_error(error) from error
        taken = pool.connection(proxy, self._place.schema)
        if self._place.schema is None:
            await _find_tables(taken, self._place)
        return taken

    async def close(self) -> None:
        for opened in self._opened.take() if self._dsn is not None else ():
            if opened.pool is not None:
                with suppress(TimeoutError):  # requests still at work then are cut off
                    async with asyncio.timeout(self._close_timeout_s):
                        await opened.pool.pool.close()

    async def _open(self, opened: _Opened) -> FastPool | PublicPool:
        if self._pool is not None:
            self._check_loop()
        async with opened.opening:  # a pool refuses to be opened by two tasks at once
            if opened.pool is None:
                ours = Connections()
                init = ours.note if self._fast is None else None
                pool = asyncpg.create_pool(self._dsn, min_size=0, init=init) if self._pool is None else self._pool
                _ = await pool
                if self._fast is None:
                    opened.pool = PublicPool(pool, patience_s=self._acquire_timeout_s, ours=ours)
                else:
                    opened.pool = self._fast(pool, patience_s=self._acquire_timeout_s)
            return opened.pool

    def note_fork(self) -> None:
        """Called in a process that was forked."""
        self._was_open = self._pool is not None and self._pool.get_size() > 0

    def _check_loop(self) -> None:
        here = asyncio.get_running_loop()
        if self._fast is not None:
            self._loop = self._fast.loop_of(self._pool)
        self._loop = self._loop or here
        if self._was_open or self._loop is not here:
            raise elsewhere("asyncpg pool")


class _Opened:
    """What is opened on one event loop."""

    __slots__ = ("opening", "pool")

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.pool: FastPool | PublicPool | None = None

    def drop(self) -> None:
        """The loop is closed."""
        if self.pool is not None:
            self.pool.drop()


async def _find_tables(connection: AsyncpgConnection, place: Place) -> None:
    try:
        connection.schema = place.read(await connection.fetch(FIND_TABLES))
    except ConfigurationError:
        await connection.discard()
        raise
    except OnefoldError as error:
        await connection.discard()
        raise connect_error(error) from error
    except BaseException as error:  # a cancelled task must not wait for a connection in an unknown state
        in_background(connection.discard())
        if isinstance(error, RuntimeError):  # what asyncio says of another loop's future
            raise elsewhere("asyncpg pool") from error
        raise


def _fast_pool() -> type[FastPool] | None:
    try:
        from onefold.db import _asyncpg_fast
    except ImportError:  # not even the modules are where they were
        return None
    return _asyncpg_fast.FastPool if _asyncpg_fast.may_be_used() else None
