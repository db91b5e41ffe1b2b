"""Listeners for what is done on the connections of the application's engine while we hold them.

Listeners of each connection's own would cost more than its statements, so there is one of each kind for the engine, and
an option of the connection has its holder. Connections without one are left alone.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, ExceptionContext, event

from onefold.db.sqlalchemy import _invalidation

_HOLDER = "onefold_holder"

_WRITES = re.compile(r"\s*(insert|update|delete|merge|replace|with\b.*\b(insert|update|delete))\b", re.I | re.S)


class Holder(Protocol):
    """What has taken a connection: a connection of onefold's."""

    writes: int
    """How many writing statements were sent, the handler's and our own."""

    def before_commit(self) -> None: ...
    def before_statement(self, cursor: Any) -> None: ...
    def note_error(self, error: BaseException) -> None: ...


def watch(engine: Engine) -> None:
    """Begin to listen. To listen twice would do no harm, and does not happen: the listeners are the same."""
    event.listen(engine, "commit", _before_commit)
    event.listen(engine, "before_cursor_execute", _before_statement)
    event.listen(engine, "handle_error", _on_error)
    _invalidation.watch(engine)


def take(connection: Connection, holder: Holder) -> None:
    """From now on, `holder` gets the events of the connection."""
    connection.execution_options(**{_HOLDER: holder})


def let_go(connection: Connection) -> None:
    """Its holder gets them no longer; and the two must not keep each other from being freed."""
    connection.execution_options(**{_HOLDER: None})


def _before_commit(connection: Connection) -> None:
    if (holder := holder_of(connection)) is not None:
        holder.before_commit()


def _before_statement(connection: Connection, cursor: Any, statement: str, *_: object) -> None:
    if (holder := holder_of(connection)) is not None:
        if _WRITES.match(statement) is not None:
            holder.writes += 1
        holder.before_statement(cursor)


def _on_error(context: ExceptionContext) -> None:
    if context.connection is not None and (holder := holder_of(context.connection)) is not None:
        holder.note_error(context.original_exception)


def holder_of(connection: Connection) -> Holder | None:
    """With whom a connection is out, if it is one of ours."""
    holder: Holder | None = connection.get_execution_options().get(_HOLDER)
    return holder
