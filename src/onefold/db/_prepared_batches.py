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
from onefold.db._batch_plans import ITEMS_MAX, Plans, Shape, places_of_values, shape_of
from onefold.db._postgres_text import BOUNDARIES, literals, placeholders, qualify_tables, render_item, script

#: SQL PREPARE takes these and refuses the rest (DDL, SET ...).
_PREPARABLE = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|VALUES|WITH)\b", re.IGNORECASE)

#: Beyond, they are named anew. A release of onefold has far fewer.
_STATEMENTS_MAX: Final = 1000


def render_unprepared(items: Sequence[BatchItem], schema: str | None) -> str:
    """The batch for a session in which nothing can be prepared, or nothing is known to be."""
    return script(render_item(item, schema) for item in items)


class Preparer:
    """Writes batches for the sessions of one database."""

    __slots__ = ("_known", "_plans", "mark")

    def __init__(self) -> None:
        #: Two of us may share a pool, and so a session: what each prepares there carries a mark of its own.
        self.mark = token_hex(4)
        #: By their texts; None: it cannot be prepared.
        self._known: dict[tuple[str | None, str], _Prepared | None] = {}
        self._plans: Plans[_PreparedPlan] = Plans()

    def query(
        self, items: Sequence[BatchItem], prepared: set[str], schema: str | None = None
    ) -> tuple[str, Collection[str]]:
        """The batch for a session that has `prepared` some, and the names of those it prepares first."""
        shape = (schema, *shape_of(items)) if len(items) <= ITEMS_MAX else None
        plan = None if shape is None else self._plans.get(shape)
        if plan is None or not plan.names <= prepared:
            return self._write(items, prepared, schema, shape)
        given: Sequence[Any] = items
        values: tuple[Value, ...] = ()
        for place in plan.places:
            values += given[place].values
        return plan.text % literals(values), ()

    def _write(
        self, items: Sequence[BatchItem], prepared: set[str], schema: str | None, shape: Shape | None
    ) -> tuple[str, Collection[str]]:
        texts: list[str] = []
        values: list[Value] = []
        names: set[str] = set()
        new: set[str] = set()
        for item in items:
            match item:
                case Statement():
                    try:
                        it = self._known[schema, item.sql]
                    except KeyError:
                        it = self._name(item.sql, schema)
                    if it is None:
                        return render_unprepared(items, schema), ()
                    # Each statement is prepared right before it is first executed: BEGIN must come first, and so must
                    # the ROLLBACK that makes an aborted transaction take statements again.
                    if it.name not in prepared and it.name not in new:
                        new.add(it.name)
                        texts.append(it.prepare)
                    names.add(it.name)
                    texts.append(it.execute)
                    values += item.values
                case Nested():
                    return render_unprepared(items, schema), ()  # a name of its own each time
                case _:
                    texts.append(BOUNDARIES[item])
        text = script(texts)
        if not new and shape is not None:
            self._plans.keep(shape, _PreparedPlan(frozenset(names), text, places_of_values(items)))
        return text % literals(values), new

    def _name(self, sql: str, schema: str | None) -> _Prepared | None:
        if len(self._known) >= _STATEMENTS_MAX:
            self._known.clear()
        it = self._known[schema, sql] = _name(sql, self.mark, schema)
        return it


class _PreparedPlan(NamedTuple):
    """Batches of one shape, in a session that has all their statements. The text has `%s` for values."""

    names: frozenset[str]
    text: str
    places: tuple[int, ...]
    """Where the items with values stand."""


class _Prepared(NamedTuple):
    """A statement as a session knows it, and what makes it known there. Texts have `%s` for values."""

    name: str
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
