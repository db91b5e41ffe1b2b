"""asyncpg by its public API: the pool, one connection of it, and what they need that no private name is used for.

A transaction is begun and ended through asyncpg's own `transaction()`, because only so a handler's becomes a savepoint
in it: BEGIN and COMMIT are round trips of their own. What stands between them goes as one simple query, or, where
values must not stand in the text, statement by statement. The pool resets the session after each use.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any, Final, TypeAlias

import asyncpg

from onefold._kernel.checkout import log_release_error
from onefold._kernel.effects import BatchItem, Boundary, HandlerStatement, NamedRows, Nested, Row, Statement
from onefold._kernel.executors import begin_in_background
from onefold._kernel.sqlstates import NOT_AS_PREPARED
from onefold.db._opened_elsewhere import Connections
from onefold.db._postgres_batches import has_secrets
from onefold.db._postgres_session import SAMPLES, as_ourselves, check_codecs, error_for, unsent_error
from onefold.db._postgres_text import LEVELS, qualify_tables, read_tag, render_boundary, render_item, script
from onefold.errors import ConfigurationError, OnefoldError

Handle: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

VENDOR_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

#: The proxy of a connection is void as soon as the pool has that back: so it is known here whether it has.
RELEASE_FAILED: Final = "it is closed, unless the pool already had it back"

#: What begins a transaction, and its level in asyncpg's words.
_BEGINS: Final[dict[BatchItem, Any]] = {
    Boundary.BEGIN_AS_CHOSEN: None,
    **{boundary: level.lower().replace(" ", "_") for boundary, level in LEVELS.items()},
}


class PublicPool:
    """A pool on its event loop. asyncpg's own is not fair: a connection that was given back is taken by the next task
    that acquires, and the one that was woken for it waits again. So there are as many places in front of it as it has
    connections, which asyncio gives to tasks in the order in which they came."""

    def __init__(self, pool: Any, *, patience_s: float, ours: Connections) -> None:
        self.pool = pool
        self.patience_s = patience_s
        self._places = asyncio.Semaphore(pool.get_max_size())
        self._ours = ours

    def at_hand(self) -> Any:
        """None: each connection is acquired from the pool."""
        return None

    async def take(self) -> Any:
        """A connection as the pool hands it out. TimeoutError: there was none, for too long."""
        async with asyncio.timeout(self.patience_s):
            await self._places.acquire()
            try:
                return await self.pool.acquire()
            except BaseException:
                self._places.release()
                raise

    def connection(self, proxy: Any, schema: str | None) -> PublicConnection:
        return PublicConnection(self, proxy, schema)

    def leave(self) -> None:
        """A connection is on its way back to the pool."""
        self._places.release()

    def drop(self) -> None:
        """The loop is closed. A pool of the application's is left to the application."""
        self._ours.drop()


class AsyncpgQueries:
    """What the handler has executed for it, on its own handle: with the codecs that the application has set there."""

    __slots__ = ()

    async def query(self: Any, statement: HandlerStatement) -> NamedRows:
        try:
            records = await self.handle.fetch(statement.sql, *statement.values, record_class=asyncpg.Record)
        except VENDOR_ERRORS as error:
            translated = self._translate_error(error)
            raise (await translated if inspect.isawaitable(translated) else translated) from error
        return NamedRows(tuple(records[0].keys()) if records else (), list(map(tuple, records)))


class PublicConnection(AsyncpgQueries):
    """One connection of the pool."""

    __slots__ = ("_broken", "_handed_out", "_left", "_pool", "_proxy", "_transaction", "_unchecked", "schema")

    def __init__(self, pool: PublicPool, proxy: Any, schema: str | None) -> None:
        self._pool = pool
        self._proxy = proxy
        #: Where our tables are.
        self.schema = schema
        #: asyncpg's own, from BEGIN to COMMIT or ROLLBACK.
        self._transaction: Any = None
        self._handed_out = self._broken = self._left = False
        #: Whether the handler may have given the session codecs that nothing is known of yet.
        self._unchecked = False

    @property
    def handle(self) -> Handle:
        self._handed_out = self._unchecked = True
        handle: Handle = self._proxy
        return handle

    async def batch(self, items: Sequence[BatchItem]) -> int:
        last, binds = items[-1], has_secrets(items)
        status = ""
        try:
            for send in self._parts(as_ourselves(items) if self._handed_out else items, binds):
                status = await send
        except VENDOR_ERRORS as error:
            raise await self._translate_error(error) from error
        if binds and last is Boundary.COMMIT:
            self._unchecked = False
        return read_tag(status) if isinstance(last, Statement) else 0

    def _parts(self, items: Sequence[BatchItem], binds: bool) -> Iterator[Any]:
        """What to await, one after the other. The first error ends it: COMMIT is not sent."""
        execute, unchecked = self._proxy.execute, self._unchecked
        for alone, group in groupby(items, lambda item: _goes_alone(item, binds)):
            if not alone:
                yield execute(script(render_item(item, self.schema) for item in group))
                continue
            for item in group:
                if isinstance(item, Statement):
                    if unchecked:
                        unchecked = False
                        yield self._check_codecs()
                    yield execute(qualify_tables(item.sql, self.schema), *item.values)
                else:
                    yield self._cross(item)

    async def _cross(self, item: Boundary | Nested) -> str:
        if item in _BEGINS and self._transaction is None:
            transaction = self._proxy.transaction(isolation=_BEGINS[item])
            try:
                await transaction.start()
            except BaseException:
                self._broken = True  # asyncpg keeps a transaction that could not be begun
                raise
            self._transaction = transaction
        elif item in _BEGINS or self._transaction is None:
            await self._proxy.execute(render_boundary(item))  # as the server takes it: it goes on as it is, and warns
        else:
            transaction, self._transaction = self._transaction, None
            await (transaction.commit() if item is Boundary.COMMIT else transaction.rollback())
        return ""

    async def _check_codecs(self) -> str:
        """asyncpg has no public way to write and read past the codecs of a session, which outlast the handler."""
        [samples] = [tuple(record) for record in await self._records(SAMPLES)]
        try:
            check_codecs(samples)
        except ConfigurationError:
            self._broken = True
            raise
        return ""

    async def fetch(self, statement: Statement) -> list[Row]:
        try:
            if self._unchecked:
                await self._check_codecs()
            return [tuple(record) for record in await self._records(statement)]
        except VENDOR_ERRORS as error:
            raise await self._translate_error(error) from error

    def _records(self, statement: Statement) -> Any:
        sql = qualify_tables(statement.sql, self.schema)
        return self._proxy.fetch(sql, *statement.values, record_class=asyncpg.Record)

    async def release(self) -> None:
        if self._broken or self._transaction is not None or self._in_transaction():
            await self.discard()
            return
        pool = self._pool
        try:
            if self._unchecked:
                await self._check_codecs()
        except (ConfigurationError, *VENDOR_ERRORS):
            await self.discard()  # not for the next request; what was to be committed is committed
            return
        except BaseException:
            await self.discard()
            raise
        try:
            await pool.pool.release(self._proxy, timeout=pool.patience_s)
        except Exception as error:
            ours = await self._translate_error(error) if isinstance(error, VENDOR_ERRORS) else error
            log_release_error(ours, RELEASE_FAILED)
            with suppress(Exception):
                await self.discard()  # by the proxy, which is void as soon as the pool has the connection
        finally:
            self._leave()

    async def discard(self) -> None:
        # A task that is cancelled here stops waiting. The connection goes all the same, or its place in the pool would
        # be lost.
        await asyncio.shield(begin_in_background(self._close()))

    async def _close(self) -> None:
        """Where a statement was cancelled, asyncpg cancels it on the server first, which would otherwise finish it and
        keep the request's locks as long."""
        proxy, pool = self._proxy, self._pool
        try:
            with suppress(*VENDOR_ERRORS):  # the server does not answer, or the connection is closed already
                async with asyncio.timeout(pool.patience_s):
                    await proxy.close()
            with suppress(*VENDOR_ERRORS):
                proxy.terminate()
            with suppress(*VENDOR_ERRORS):
                await pool.pool.release(proxy)
        finally:
            self._leave()

    def _leave(self) -> None:
        if not self._left:
            self._left = True
            self._pool.leave()

    def _in_transaction(self) -> bool:
        return not self._is_closed() and bool(self._proxy.is_in_transaction())

    def _is_closed(self) -> bool:
        try:
            return bool(self._proxy.is_closed())
        except asyncpg.InterfaceError:  # the pool has taken it back when it was closed
            return True

    async def _translate_error(self, error: BaseException) -> OnefoldError:
        if isinstance(error, asyncpg.InterfaceError):
            await asyncio.sleep(0)  # asyncpg notices in the loop's next turn that the server has closed it
            if not self._is_closed():
                return unsent_error(error)  # asyncpg itself would not send it
        sqlstate = getattr(error, "sqlstate", None)
        # asyncpg goes on to look for the statements that are gone: a handler's DISCARD ALL, or a pooler in between.
        self._broken = self._broken or sqlstate in NOT_AS_PREPARED
        return error_for(sqlstate, error)


def _goes_alone(item: BatchItem, binds: bool) -> bool:
    """Whether it cannot be one of several in a simple query."""
    if isinstance(item, Statement):
        return binds and bool(item.values)
    return item in _BEGINS or item is Boundary.COMMIT or item is Boundary.ROLLBACK
