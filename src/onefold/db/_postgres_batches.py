"""Batches as a session of Postgres gets them: each in one round trip, its statements parsed once in the session.

There are two ways to send one. A batch that commits what it writes is *bound*, and so is a single statement:
its values travel beside the text, in messages of the extended protocol (Bind and Execute for each item, one Sync). A
server that refuses a statement, or a COMMIT, writes the statement to its log, and values that stand in the text would
be there to be read: answers, events, keys. Bound ones are not (log_parameter_max_length_on_error is 0 unless an
administrator asks for more). All other batches are *prepared*: one simple query of SQL's PREPARE and EXECUTE, with the
values written in; they need not be hidden (digests, ids, times). A driver's own prepared statements would be a round
trip each. Either way the first error makes the server skip the rest, COMMIT included.

Batches come again and again with the same texts and other values. So how one was written is kept for its session as a
plan, by the batch's shape; the next batch of that shape is the plan and its own values, and none of its items is looked
at by itself. A session has plans of batches only whose statements it has parsed, all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter, call, itemgetter
from secrets import token_hex
from struct import Struct
from types import NoneType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from onefold._kernel.effects import BatchItem, Boundary, Nested, Statement, Value
from onefold.db._postgres_text import (
    BOUNDARIES,
    PerKind,
    encode_text,
    literals,
    placeholders,
    qualify_tables,
    render_item,
    render_unbound,
    script,
)

P = TypeVar("P")

Shape: TypeAlias = tuple[Hashable, ...]

#: Batches with many events come in too many shapes to be kept.
ITEMS_MAX: Final = 12
_PLANS_MAX: Final = 100

#: Beyond, statements are named anew. A release of onefold has far fewer.
_STATEMENTS_MAX: Final = 1000


#: What stays the same of an item from batch to batch.
_texts_of: Final = PerKind[Callable[[Any], Hashable]](
    {Statement: itemgetter(0), Boundary: attrgetter("_value_"), Nested: tuple}
).__getitem__


def shape_of(items: Sequence[BatchItem]) -> Shape:
    """What all batches have in common that differ by their values only."""
    return tuple(map(call, map(_texts_of, map(type, items)), items))


def places_of_values(items: Sequence[BatchItem]) -> tuple[int, ...]:
    """Where in a batch of this shape the statements with values stand."""
    return tuple([n for n, item in enumerate(items) if isinstance(item, Statement) and item.values])


def _values(item: BatchItem | str) -> tuple[Value, ...]:
    return item.values if isinstance(item, Statement) else ()


def _name_of(text: str, mark: str) -> str:
    """What a session calls a statement. It changes with the text: two releases of onefold may share a session."""
    return f"onefold_{mark}_{blake2b(text.encode(), digest_size=8).hexdigest()}"


class Plans(dict[Shape, P], Generic[P]):
    """What is kept for a session, by the shape of the batch and whatever else it depends on."""

    __slots__ = ()

    def keep(self, shape: Shape, plan: P) -> None:
        """From now on batches of this shape are sent by the plan."""
        if len(self) >= _PLANS_MAX:
            self.clear()
        self[shape] = plan


# --- prepared: a simple query -------------------------------------------------------------------------------

#: SQL PREPARE takes these and refuses the rest (DDL, SET ...).
_PREPARABLE = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|VALUES|WITH)\b", re.IGNORECASE)


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
        return script(texts) % literals([value for item in items for value in _values(item)]), new

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


class _Prepared(NamedTuple):
    """A statement as a session knows it, and what makes it known there; or a boundary, which has no name. Texts have
    `%s` for values."""

    name: str | None
    prepare: str
    execute: str


def _name(sql: str, mark: str, schema: str | None) -> _Prepared | None:
    if not _PREPARABLE.match(sql):
        return None
    text = qualify_tables(sql, schema)
    name = _name_of(text, mark)
    holes = ",".join(["%s"] * placeholders(sql))
    prepare = f"PREPARE {name} AS {text}".replace("%", "%%")
    return _Prepared(name, prepare, f"EXECUTE {name}({holes})" if holes else f"EXECUTE {name}")


# --- bound: messages of the extended protocol ---------------------------------------------------------------

_INT16: Final = Struct("!h").pack
_INT32: Final = Struct("!i").pack

#: Run the portal that was bound last, to its end.
_EXECUTE: Final = b"E" + _INT32(9) + b"\0" + _INT32(0)
_NO_RESULT_FORMATS: Final = _INT16(0)


def has_secrets(items: Sequence[BatchItem]) -> bool:
    """Whether its values must be bound: it writes, and is sent alone or with its COMMIT."""
    if items[-1] is not Boundary.COMMIT and len(items) > 1:
        return False  # a claim: digests, ids and times
    for item in items:  # not any(): every request comes by here, and a generator costs more than its first statement
        if type(item) is not Statement or not item.values:
            continue
        return True
    return False


def encode_values(values: tuple[Value, ...]) -> tuple[list[Any], tuple[int, ...]]:
    """Values as Postgres reads them, and their formats: bytes as they are (1), the rest as text (0). None: NULL."""
    kinds = _kinds(tuple(map(type, values)))
    return list(map(call, kinds.encoders, values)), kinds.formats


def _null(_: None) -> None:
    return None


_ENCODERS: Final[PerKind[Callable[[Any], bytes | None]]] = PerKind(
    {bytes: bytes, int: b"%d".__mod__, str: encode_text, NoneType: _null}
)
_FORMATS: Final = PerKind({bytes: 1, int: 0, str: 0, NoneType: 0})


class _Kinds(NamedTuple):
    """How values of these kinds are written."""

    encoders: tuple[Callable[[Any], bytes | None], ...]
    formats: tuple[int, ...]
    announced: bytes
    """The formats, and the number of values, as they stand in front of the values."""
    may_be_null: bool


@lru_cache(maxsize=1000)  # a statement is given values of the same kinds, but for a NULL here and there
def _kinds(kinds: tuple[type[Any], ...]) -> _Kinds:
    formats = tuple(_FORMATS[kind] for kind in kinds)
    announced = b"".join(map(_INT16, (*formats, len(kinds))))
    return _Kinds(tuple(_ENCODERS[kind] for kind in kinds), formats, announced, NoneType in kinds)


class BoundPlan(NamedTuple):
    """Batches of one shape, in a session that has all their statements, as messages."""

    bound: tuple[tuple[int, bytes, bytes], ...]
    """For each statement with values: its place in the batch, what goes in front of it, and its head."""
    behind: bytes

    def write(self, items: Sequence[Any]) -> bytes:
        """All but the last one, with the values of these items."""
        messages = b""
        for place, front, head in self.bound:
            messages += front + _bind(head, items[place].values)
        return messages + self.behind


class Binder:
    """Writes batches for the sessions of one database. A statement is parsed once in a session, under a name."""

    __slots__ = ("_mark", "_named")

    def __init__(self, mark: str) -> None:
        self._mark = mark
        #: By their texts: batches come in as many shapes as there are numbers of events, but have few of these.
        self._named: dict[tuple[str | None, str | BatchItem], NamedStatement] = {}

    def write(
        self, items: Sequence[BatchItem | str], prepared: set[str], schema: str | None
    ) -> tuple[bytes, Collection[str], NamedStatement]:
        """The items for a session that has `prepared` some: the messages of all but the last one, the names of the
        statements that they parse first, and the last one, which has no values and is sent by the driver itself."""
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

    def plan(self, items: Sequence[BatchItem], sent: Sequence[BatchItem | str], schema: str | None) -> BoundPlan:
        """For batches like these items, which are sent as those: what is sent beyond the items has no values."""
        bound: list[tuple[int, bytes, bytes]] = []
        places = iter(places_of_values(items))
        constant = b""
        for item in sent[:-1]:
            head = self.find(item, schema).head
            if _values(item):
                bound.append((next(places), constant, head))
                constant = b""
            else:
                constant += head
        return BoundPlan(tuple(bound), constant)

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


class NamedStatement(NamedTuple):
    """A statement as a session knows it."""

    name: str
    sql: str
    parse: bytes
    head: bytes
    """How a Bind of it begins, up to the number of its values; where it has none: all of it, and its Execute."""


def name_statement(item: BatchItem | str, mark: str, schema: str | None) -> NamedStatement:
    """The statement, with its name and the messages that go by it."""
    sql = item if isinstance(item, str) else render_unbound(item, schema)
    name, count = _name_of(sql, mark), len(_values(item))
    head = b"\0" + name.encode() + b"\0" + _INT16(count)
    if not count:
        head = _message(b"B", head + _INT16(0) * 2) + _EXECUTE
    parse = _message(b"P", name.encode() + b"\0" + sql.encode() + b"\0" + _INT16(0))
    return NamedStatement(name, sql, parse, head)


def _message(kind: bytes, payload: bytes) -> bytes:
    return kind + _INT32(len(payload) + 4) + payload


def _bind(head: bytes, values: tuple[Value, ...]) -> bytes:
    kinds = _kinds(tuple(map(type, values)))
    data: list[Any] = list(map(call, kinds.encoders, values))
    lengths: Iterable[int] = map(len, data)
    if kinds.may_be_null:
        lengths = [-1 if each is None else len(each) for each in data]
        data = [each or b"" for each in data]
    fields = data * 2  # each behind its length
    fields[::2] = map(_INT32, lengths)
    fields[1::2] = data
    return _message(b"B", b"".join((head, kinds.announced, *fields, _NO_RESULT_FORMATS))) + _EXECUTE
