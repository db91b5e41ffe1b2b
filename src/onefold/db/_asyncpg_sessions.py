"""asyncpg: what is known of a session of the application's pool, for as long as that lasts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from weakref import ref

import asyncpg
from asyncpg.protocol.protocol import PreparedStatementState

from onefold._kernel.effects import Statement

#: How asyncpg's reset of a session begins: the part of it that is cheaper when it is prepared.
_UNLOCK = Statement("SELECT pg_advisory_unlock_all()")


class Reset(NamedTuple):
    """What the pool would send to a session that comes back to it, in a round trip of its own."""

    first: tuple[Statement, ...] = ()
    rest: str = ""
    """What follows."""
    each: tuple[Statement | str, ...] = ()
    """All of it, one by one."""


NO_RESET = Reset()


class Session:
    """What outlives a request on a connection of the pool."""

    __slots__ = ("_ends", "connection", "copies", "passed", "prepared", "prepares", "reset", "resets_as_usual")

    def __init__(self, connection: Any, gone: Callable[[ref[Any]], None], pool: Any) -> None:
        self.connection = ref(connection, gone)  # an id may be used again, a reference tells
        #: A pool set up for PgBouncer has no statement cache, and SQL PREPARE would not survive there either.
        self.prepares = connection._stmt_cache.get_max_size() > 0
        self.prepared: set[str] = set()
        #: How often it went from request to request without the pool.
        self.passed = 0
        #: A pool or a connection class with hooks of its own keeps them.
        usual = type(connection).get_reset_query is asyncpg.Connection.get_reset_query
        self.resets_as_usual = usual and getattr(pool, "_reset", None) is None and getattr(pool, "_setup", None) is None
        reset: str = connection.get_reset_query() if self.resets_as_usual else ""
        rest = reset.removeprefix(_UNLOCK.sql)
        first = () if rest == reset else (_UNLOCK,)
        self.reset = Reset(first, rest, (*first, *(text.strip() for text in rest.split(";") if text.strip())))
        #: The last statements of bound batches, as asyncpg knows them.
        self._ends: dict[str, PreparedStatementState] = {}
        #: How often COPY was begun, which asyncpg does not count among its queries.
        self.copies = 0
        protocol = connection._protocol
        for name in ("copy_in", "copy_out"):
            setattr(protocol, name, partial(self._copy, getattr(protocol, name)))

    def _copy(self, copy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.copies += 1
        return copy(*args, **kwargs)

    def end(self, connection: Any, name: str, sql: str) -> PreparedStatementState:
        """A statement without values that our own messages parse. `connection.prepare` would ask the server about it:
        a round trip, on a new connection, between what the handler did and its COMMIT."""
        if name not in self._ends:  # once or twice for each connection of the pool
            self._ends[name] = PreparedStatementState(name, sql, connection._protocol, asyncpg.Record, True)
        return self._ends[name]
