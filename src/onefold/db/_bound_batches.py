"""Batches whose values travel beside the text, in one round trip: messages of Postgres's extended protocol.

A server that refuses a statement, or a COMMIT, writes the statement to its log. Values that stand in the text would be
there to be read: answers, events, keys. Bound ones are not (log_parameter_max_length_on_error is 0 unless an
administrator asks for more). So a batch that commits is sent as Bind and Execute for each of its items, and one Sync at
the end: the first error makes the server skip the rest, COMMIT included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from itertools import chain
from struct import Struct
from types import NoneType
from typing import Any, Final, NamedTuple

from onefold._kernel.effects import BatchItem, Boundary, Statement, Value
from onefold.db._batch_plans import ITEMS_MAX, PerKind, Plans, apply, places_of_values, shape_of
from onefold.db._postgres_session import as_ourselves
from onefold.db._postgres_text import encode_text, render_unbound

_INT16: Final = Struct("!h").pack
_INT32: Final = Struct("!i").pack

#: Run the portal that was bound last, to its end.
_EXECUTE: Final = b"E" + _INT32(9) + b"\0" + _INT32(0)
_NO_RESULT_FORMATS: Final = _INT16(0)
_COUNT_BYTES: Final = 2

#: Beyond, they are named anew. A release of onefold has far fewer.
_STATEMENTS_MAX: Final = 1000


def has_secrets(items: Sequence[BatchItem]) -> bool:
    """Whether its values must be bound: it writes, and is sent alone or with its COMMIT."""
    if items[-1] is not Boundary.COMMIT and len(items) > 1:
        return False  # a claim: digests, ids and times
    for item in items:  # not any(): every request comes by here, and a generator costs more than its first statement
        if type(item) is not Statement or not item.values:
            continue
        return True
    return False


def encode_values(values: tuple[Value, ...]) -> tuple[list[Any], list[int]]:
    """Values as Postgres reads them, and their formats: bytes as they are (1), the rest as text (0). None: NULL."""
    return list(apply(_ENCODERS, values)), list(_FORMATS.of(values))


def _null(_: None) -> None:
    return None


_ENCODERS: Final[PerKind[Callable[[Any], bytes | None]]] = PerKind(
    {bytes: bytes, int: b"%d".__mod__, str: encode_text, NoneType: _null}
)
_FORMATS: Final = PerKind({bytes: 1, int: 0, str: 0, NoneType: 0})


class Binder:
    """Writes batches for the sessions of one database. A statement is parsed once in a session, under a name."""

    __slots__ = ("_mark", "_named", "_plans")

    def __init__(self, mark: str) -> None:
        self._mark = mark
        #: By their texts: batches come in as many shapes as there are numbers of events, but have few of these.
        self._named: dict[tuple[str | None, str | BatchItem], NamedStatement] = {}
        #: By the texts of the items, where they come again and again.
        self._plans: Plans[BoundPlan] = Plans()

    def bind(
        self,
        items: Sequence[BatchItem],
        after: tuple[BatchItem | str, ...],
        prepared: set[str],
        schema: str | None,
        *,
        handed_out: bool = False,
    ) -> tuple[bytes, Collection[str], NamedStatement]:
        """The items (`as_ourselves`, where the connection was `handed_out`), and what follows each time, for a session
        that has `prepared` some: the messages of all but the last one, the names of the statements that they parse
        first, and the last one, which has no values and is sent by the driver itself."""
        plan = self.plan(items, after, schema, handed_out=handed_out)
        if plan is None or not plan.names <= prepared:
            whole = as_ourselves(items) if handed_out else items
            return self._write((*whole, *after), prepared, schema)
        given: Sequence[Any] = items
        messages = b""
        for place, front, head in plan.before:
            messages += front + _bind(head, given[place].values)
        return messages + plan.behind, (), plan.last

    def plan(
        self, items: Sequence[BatchItem], after: tuple[BatchItem | str, ...], schema: str | None, *, handed_out: bool
    ) -> BoundPlan | None:
        """What is known of batches of this shape; None: they have too many items for that."""
        if len(items) > ITEMS_MAX:
            return None
        shape = (schema, handed_out, after, *shape_of(items))
        plan = self._plans.get(shape)
        if plan is None:
            whole = (*(as_ourselves(items) if handed_out else items), *after)
            named = [(self.find(item, schema), bool(_values(item))) for item in whole]
            plan = self._plans.keep(shape, _plan(named, places_of_values(items)))
        return plan

    def _write(
        self, items: Sequence[BatchItem | str], prepared: set[str], schema: str | None
    ) -> tuple[bytes, Collection[str], NamedStatement]:
        parts: list[bytes] = []
        new: set[str] = set()
        for item in items:
            it, values = self.find(item, schema), _values(item)
            # Each statement is parsed right before it is first executed: a ROLLBACK must come first that makes an
            # aborted transaction take others again.
            if it.name not in prepared and it.name not in new:
                new.add(it.name)
                parts.append(it.parse)
            parts.append(_bind(it.head, values) if values else it.head)
        del parts[-1]
        return b"".join(parts), new, it

    def find(self, item: BatchItem | str, schema: str | None) -> NamedStatement:
        """A statement under its name."""
        text = item.sql if isinstance(item, Statement) else item
        try:
            return self._named[schema, text]
        except KeyError:
            if len(self._named) >= _STATEMENTS_MAX:
                self._named.clear()
            it = self._named[schema, text] = name_statement(item, self._mark, schema)
            return it


class BoundPlan(NamedTuple):
    """Batches of one shape, in a session that has all their statements."""

    names: frozenset[str]
    places: tuple[int, ...]
    """Where the items with values stand in the batch, before `as_ourselves`."""
    steps: tuple[tuple[bytes, int | None], ...]
    """For each statement that is sent: its name, and which of `places` has its values."""
    before: tuple[tuple[int, bytes, bytes], ...]
    """As messages, for each statement with values: its place, what goes in front of it, and its head."""
    behind: bytes
    last: NamedStatement


def _plan(items: Sequence[tuple[NamedStatement, bool]], places: tuple[int, ...]) -> BoundPlan:
    steps: list[tuple[bytes, int | None]] = []
    before: list[tuple[int, bytes, bytes]] = []
    constant = b""
    for it, has_values in items:
        steps.append((it.name.encode(), len(before) if has_values else None))
        if has_values:
            before.append((places[len(before)], constant, it.head))
            constant = b""
        elif len(steps) < len(items):
            constant += it.head
    names = frozenset(it.name for it, _ in items)
    return BoundPlan(names, places, tuple(steps), tuple(before), constant, items[-1][0])


def _values(item: BatchItem | str) -> tuple[Value, ...]:
    return item.values if isinstance(item, Statement) else ()


class NamedStatement(NamedTuple):
    """A statement as a session knows it."""

    name: str
    sql: str
    parse: bytes
    head: bytes
    """How a Bind of it begins, up to the number of its values; where it has none: all of it, and its Execute."""


def name_statement(item: BatchItem | str, mark: str, schema: str | None) -> NamedStatement:
    """A name that changes with the text: two releases of onefold may share a server-side session."""
    sql = item if isinstance(item, str) else render_unbound(item, schema)
    name = f"onefold_{mark}_{blake2b(sql.encode(), digest_size=8).hexdigest()}"
    count = len(item.values) if isinstance(item, Statement) else 0
    head = b"\0" + name.encode() + b"\0" + _INT16(count)
    if not count:
        head = _message(b"B", head + _INT16(0) * 2) + _EXECUTE
    parse = _message(b"P", name.encode() + b"\0" + sql.encode() + b"\0" + _INT16(0))
    return NamedStatement(name, sql, parse, head)


def _message(kind: bytes, payload: bytes) -> bytes:
    return kind + _INT32(len(payload) + 4) + payload


def _bind(head: bytes, values: tuple[Value, ...]) -> bytes:
    data, formats = encode_values(values)
    lengths = [-1 if each is None else len(each) for each in data] if None in data else map(len, data)
    fields = filter(None, chain.from_iterable(zip(map(_INT32, lengths), data, strict=True)))
    count = head[-_COUNT_BYTES:]
    return _message(b"B", b"".join((head, *map(_INT16, formats), count, *fields, _NO_RESULT_FORMATS))) + _EXECUTE
