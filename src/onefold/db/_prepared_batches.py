"""Batches as one simple query each, whose statements are prepared once per session.

Parsing and planning them again for every request would cost Postgres more than running them does, and a driver's own
prepared statements cannot travel several at a time. So this is SQL's PREPARE and EXECUTE, with values written in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from hashlib import blake2b
from secrets import token_hex
from typing import Any, Final, NamedTuple

from onefold._kernel.effects import BatchItem, Nested, Statement, Value
from onefold.db._batch_plans import places_of_values
from onefold.db._postgres_text import BOUNDARIES, literals, placeholders, qualify_tables, render_item, script

#: SQL PREPARE takes these and refuses the rest (DDL, SET ...).
_PREPARABLE = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|VALUES|WITH)\b", re.IGNORECASE)

#: Beyond, they are named anew. A release of onefold has far fewer.
_STATEMENTS_MAX: Final = 1000


def render_unprepared(items: Sequence[BatchItem], schema: str | None) -> str:
    """The batch for a session in which nothing can be prepared, or nothing is known to be."""
    return script(render_item(item, schema) for item in items)


class PreparedPlan(NamedTuple):
    """Batches of one shape, in a session that has all their statements."""

    text: str
    """With `%s` for values."""
    places: tuple[int, ...]
    """Where the items with values stand in the batch."""

    def write(self, items: Sequence[Any]) -> str:
        """The query, with the values of these items."""
        values: tuple[Value, ...] = ()
        for place in self.places:
            values += items[place].values
        return self.text % literals(values)


class Preparer:
    """Writes batches for the sessions of one database."""

    __slots__ = ("_known", "mark")

    def __init__(self) -> None:
        #: Two of us may share a pool, and so a session: what each prepares there carries a mark of its own.
        self.mark = token_hex(4)
        #: By their texts; None: it cannot be prepared.
        self._known: dict[tuple[str | None, str], _Prepared | None] = {}

    def write(
        self, items: Sequence[BatchItem], prepared: set[str], schema: str | None = None
    ) -> tuple[str, Collection[str]]:
        """The batch for a session that has `prepared` some, and the names of those it prepares first."""
        steps = self._steps(items, schema)
        if steps is None:
            return render_unprepared(items, schema), ()
        texts: list[str] = []
        new: set[str] = set()
        for it in steps:
            # Each statement is prepared right before it is first executed: BEGIN must come first, and so must the
            # ROLLBACK that makes an aborted transaction take statements again.
            if it.name is not None and it.name not in prepared and it.name not in new:
                new.add(it.name)
                texts.append(it.prepare)
            texts.append(it.execute)
        return script(texts) % literals(_values(items)), new

    def plan(
        self, items: Sequence[BatchItem], sent: Sequence[BatchItem], rest: str = "", schema: str | None = None
    ) -> PreparedPlan | None:
        """For batches like these items, which are sent as those, with the rest behind. None: they have something that
        cannot be prepared."""
        steps = self._steps(sent, schema)
        if steps is None:
            return None
        return PreparedPlan(script(it.execute for it in steps) + rest.replace("%", "%%"), places_of_values(items))

    def _steps(self, items: Sequence[BatchItem], schema: str | None) -> list[_Prepared] | None:
        """What is sent for each item. None: something of it cannot be prepared."""
        steps: list[_Prepared] = []
        for item in items:
            match item:
                case Statement():
                    it = self._find(item.sql, schema)
                    if it is None:
                        return None
                    steps.append(it)
                case Nested():
                    return None  # a name of its own each time
                case _:
                    steps.append(_Prepared(None, "", BOUNDARIES[item]))
        return steps

    def _find(self, sql: str, schema: str | None) -> _Prepared | None:
        try:
            return self._known[schema, sql]
        except KeyError:
            if len(self._known) >= _STATEMENTS_MAX:
                self._known.clear()
            it = self._known[schema, sql] = _name(sql, self.mark, schema)
            return it


def _values(items: Sequence[BatchItem]) -> list[Value]:
    return [value for item in items if isinstance(item, Statement) for value in item.values]


class _Prepared(NamedTuple):
    """A statement as a session knows it, and what makes it known there; or a boundary, which has no name. Texts have
    `%s` for values."""

    name: str | None
    prepare: str
    execute: str


def _name(sql: str, mark: str, schema: str | None) -> _Prepared | None:
    if not _PREPARABLE.match(sql):
        return None
    # A name that changes with the text: two releases of onefold may share a server-side session.
    text = qualify_tables(sql, schema)
    name = f"onefold_{mark}_{blake2b(text.encode(), digest_size=8).hexdigest()}"
    holes = ",".join(["%s"] * placeholders(sql))
    prepare = f"PREPARE {name} AS {text}".replace("%", "%%")
    return _Prepared(name, prepare, f"EXECUTE {name}({holes})" if holes else f"EXECUTE {name}")
