"""What concerns a session of an asyncpg pool beyond our batches: the reset, COPY, and what asyncpg knows of BEGIN."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from onefold._kernel.effects import Statement

#: How asyncpg's reset of a session begins: the part of it that is cheaper when it is prepared.
_UNLOCK: Final = Statement("SELECT pg_advisory_unlock_all()")


class SessionReset(NamedTuple):
    """What the pool would send to a session that comes back to it, in a round trip of its own."""

    first: tuple[Statement, ...] = ()
    rest: str = ""
    """What follows, to stand behind another text."""
    each: tuple[Statement | str, ...] = ()
    """All of it, one by one."""


NO_RESET: Final = SessionReset()


def split_reset(query: str) -> SessionReset:
    """The pool's query in its parts."""
    rest = query.removeprefix(_UNLOCK.sql)
    first = () if rest == query else (_UNLOCK,)
    each = tuple(text.strip() for text in rest.split(";") if text.strip())
    return SessionReset(first, f";{rest}" if each else "", (*first, *each))


class CopyCount:
    """How often COPY was begun in a session, which asyncpg does not count among its queries."""

    __slots__ = ("begun",)

    def __init__(self, protocol: Any) -> None:
        self.begun = 0
        for name in ("copy_in", "copy_out"):
            setattr(protocol, name, partial(self._copy, getattr(protocol, name)))

    def _copy(self, copy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.begun += 1
        return copy(*args, **kwargs)


class BegunByBatch:
    """Stands for the transaction that our batch began, in asyncpg's session, so that the handler's own
    `connection.transaction()` becomes a savepoint instead of an InterfaceError."""

    _isolation = None  # asyncpg queries the server, should it need the level
    _managed = True
