"""Being told of what is done on the connections of the application's engine while they are out with us.

Listeners of each connection's own would cost more than its statements, so there is one of each kind for the engine, and
an option of the connection says with whom it is out. Connections that are not are left alone.
"""

from __future__ import annotations

from typing import Any, Protocol

from sqlalchemy import Connection, Engine, event

from onefold.db.sqlalchemy import invalidation

_HOLDER = "onefold_holder"


class Holder(Protocol):
    """Whoever has taken a connection."""

    def before_commit(self) -> None: ...
    def before_statement(self, cursor: Any) -> None: ...


def watch(engine: Engine) -> None:
    """Begin to listen. To be told twice would do no harm, and does not happen: the listeners are the same."""
    event.listen(engine, "commit", _before_commit)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "before_cursor_execute", _before_statement)
    invalidation.watch(engine)


def take(connection: Connection, holder: Holder) -> None:
    """From now on, `holder` is told."""
    connection.execution_options(**{_HOLDER: holder})


def let_go(connection: Connection) -> None:
    """No longer; and the two must not keep each other from being freed."""
    connection.execution_options(**{_HOLDER: None})


def _before_commit(connection: Connection) -> None:
    if (holder := _holder(connection)) is not None:
        holder.before_commit()


def _before_statement(connection: Connection, cursor: Any, *_: object) -> None:
    if (holder := _holder(connection)) is not None:
        holder.before_statement(cursor)


def _holder(connection: Connection) -> Holder | None:
    holder: Holder | None = connection.get_execution_options().get(_HOLDER)
    return holder
