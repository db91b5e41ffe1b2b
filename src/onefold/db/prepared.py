"""Batches as one simple query each, whose statements are prepared once per session.

Parsing and planning them again for every request would cost Postgres more than running them does, and a driver's own
prepared statements cannot travel several at a time. So this is SQL's PREPARE and EXECUTE, with values written in.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from secrets import token_hex

from onefold._kernel.effects import Boundary, Statement, Step, Value
from onefold.db.postgres import BOUNDARIES, literals, placeholders, rendered, script

#: SQLSTATEs: a prepared statement is missing, or there already. Not the session it was, or a pooler is in between.
NOT_AS_PREPARED = ("26000", "42P05")

#: SQL PREPARE takes these and refuses the rest (DDL, SET ...).
_PREPARABLE = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|VALUES|WITH)\b", re.IGNORECASE)


def unprepared(steps: Sequence[Step]) -> str:
    """The batch for a session in which nothing can be prepared, or nothing is known to be."""
    return script(map(rendered, steps))


class Preparer:
    """Writes batches for the sessions of one database."""

    __slots__ = ("_mark", "_plans")

    def __init__(self) -> None:
        #: Two of us may share a pool, and so a session: what each prepares there carries a mark of its own.
        self._mark = token_hex(4)
        self._plans: dict[tuple[str | Boundary, ...], _Plan | None] = {}

    def query(self, steps: Sequence[Step], prepared: set[str]) -> tuple[str, Collection[str]]:
        """The batch for a session that has `prepared` some, and the names of those it prepares first."""
        shape: list[str | Boundary] = []
        values: list[Value] = []
        for step in steps:
            if isinstance(step, Statement):
                shape.append(step.sql)
                values += step.values
            else:
                shape.append(step)
        form = tuple(shape)
        try:
            plan = self._plans[form]
        except KeyError:  # once for each place in onefold that sends a batch
            plan = self._plans.setdefault(form, _planned(steps, self._mark))
        if plan is None:
            return unprepared(steps), ()
        if plan.names <= prepared:
            return plan.template % literals(values), ()
        new = plan.names - prepared
        return plan.template_preparing(new) % literals(values), new


@dataclass(frozen=True, slots=True)
class _Plan:
    """How batches of one shape are sent: the query with `%s` for its values, and what it needs prepared."""

    parts: tuple[tuple[str, str | None], ...]
    """Each step as text, and the name of the statement it executes."""
    prepares: dict[str, str]
    names: frozenset[str]
    """Of what it prepares: every batch asks whether its session has them all."""
    template: str

    def template_preparing(self, new: Collection[str]) -> str:
        """Each statement is prepared right before it is first executed: BEGIN must come first, and so must the
        ROLLBACK that makes an aborted transaction take statements again."""
        left = set(new)
        texts = []
        for text, name in self.parts:
            if name in left:
                left.remove(name)
                texts.append(f"PREPARE {name} AS {self.prepares[name]}".replace("%", "%%"))
            texts.append(text)
        return script(texts)


def _planned(steps: Sequence[Step], mark: str) -> _Plan | None:
    """None: a statement of the batch cannot be prepared."""
    parts: list[tuple[str, str | None]] = []
    prepares: dict[str, str] = {}
    for step in steps:
        if isinstance(step, Boundary):
            parts.append((BOUNDARIES[step], None))
            continue
        if not _PREPARABLE.match(step.sql):
            return None
        # A name that changes with the text: two releases of onefold may share a server-side session.
        name = f"onefold_{mark}_{blake2b(step.sql.encode(), digest_size=8).hexdigest()}"
        prepares[name] = step.sql
        holes = ",".join(["%s"] * placeholders(step.sql))
        parts.append((f"EXECUTE {name}({holes})" if holes else f"EXECUTE {name}", name))
    return _Plan(tuple(parts), prepares, frozenset(prepares), script(text for text, _ in parts))
