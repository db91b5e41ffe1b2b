"""In development: refusing writes that go past the request's transaction, on other connections of its engine.

A session of the application's own beside the request's commits apart from the key, the answer and the events, or never:
a 201 whose row is not there. Its first new object, its first writing statement and its commit are where that shows. In
production nothing listens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakMethod

from sqlalchemy import Connection, Engine, event, exc
from sqlalchemy.orm import Session

from onefold.db.sqlalchemy._engine_events import holder_of
from onefold.db.sqlalchemy._sessions import is_joined
from onefold.errors import TransactionMisused

#: The operation of the request that this task or thread is serving, while it must write through its own transaction.
#: A method: it is called for as long as its object lives.
Guard: TypeAlias = Callable[[], str | None]

_GUARD = "onefold_guard"
_BEGUN_INSIDE = "onefold_begun_inside"

_WRITES = re.compile(r"\s*(insert|update|delete|merge)\b", re.IGNORECASE)


def guard_engine(engine: Engine, guard: Guard) -> None:
    """Call `guard` from now on, beside those added before: each Onefold on the engine has its own. The listeners are
    the same for every engine, so that none is called twice."""
    guards = _guard(engine) or _Guards()
    guards.add(guard)
    engine.update_execution_options(**{_GUARD: guards})
    event.listen(engine, "begin", _on_begin)
    event.listen(engine, "before_cursor_execute", _before_statement)
    event.listen(engine, "commit", _before_commit)
    if not event.contains(Session, "transient_to_pending", _on_add):
        event.listen(Session, "transient_to_pending", _on_add)


class _Guards:
    """All guards of an engine, each for as long as its Onefold is there: an engine may outlive many."""

    def __init__(self) -> None:
        self._known: list[WeakMethod[Guard]] = []

    def add(self, guard: Guard) -> None:
        self._known = [*(known for known in self._known if known() is not None), WeakMethod(guard)]

    def __call__(self) -> str | None:
        for known in self._known:
            if (guard := known()) is not None and (operation := guard()) is not None:
                return operation
        return None


def _guard(connection: Engine | Connection) -> _Guards | None:
    guard: _Guards | None = connection.get_execution_options().get(_GUARD)
    return guard


def _stranger(connection: Connection) -> _Guards | None:
    """The guard, where the connection is not the one of a transaction of ours."""
    return None if holder_of(connection) is not None else _guard(connection)


def _on_begin(connection: Connection) -> None:
    if (guard := _stranger(connection)) is not None:
        # What is begun inside a request may be flushed and committed after its answer, by a dependency's exit.
        connection.execution_options(**{_BEGUN_INSIDE: guard()})


def _before_statement(connection: Connection, _: Any, statement: str, *__: object) -> None:
    if (guard := _stranger(connection)) is not None and (found := _WRITES.match(statement)) is not None:
        begun_inside: str | None = connection.get_execution_options().get(_BEGUN_INSIDE)
        verb = found[1].upper()
        what = f"{'an' if verb[0] in 'IU' else 'a'} {verb}"
        _refuse(guard() or begun_inside, f"{what} on another connection of the engine")


def _before_commit(connection: Connection) -> None:
    if (guard := _stranger(connection)) is not None:
        _refuse(guard(), "a commit on another connection of the engine")


def _on_add(session: Session, instance: object) -> None:
    if is_joined(session):
        return
    try:
        bind = session.get_bind(type(instance))
    except exc.SQLAlchemyError:
        return  # it is raised when it is flushed
    if (guard := _guard(bind.engine)) is not None:
        _refuse(guard(), f"a new {type(instance).__name__} in a session on another connection of the engine")


def _refuse(operation: str | None, what: str) -> None:
    if operation is not None:
        raise TransactionMisused(
            f"{operation}: {what} than the request's own. It commits apart from the key, the answer and the events, or "
            "never. Use the request's session (SessionTx, AsyncSessionTx, RequestSession, AsyncRequestSession, "
            "current_session(), tx.session()) or tx.connection; a route that writes elsewhere on purpose has "
            "writes=False. Only development=True refuses this"
        )
