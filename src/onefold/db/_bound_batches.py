"""Batches whose values travel beside the text, in one round trip: messages of Postgres's extended protocol.

A server that refuses a statement, or a COMMIT, writes the statement to its log. Values that stand in the text would be
there to be read: answers, events, keys. Bound ones are not (log_parameter_max_length_on_error is 0 unless an
administrator asks for more). So a batch that commits is sent as Bind and Execute for each of its items, and one Sync at
the end: the first error makes the server skip the rest, COMMIT included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import call
from struct import Struct
from types import NoneType
from typing import Any, Final, NamedTuple

from onefold._kernel.effects import BatchItem, Boundary, Statement, Value
from onefold.db._batch_plans import PerKind, places_of_values
from onefold.db._postgres_text import encode_text, render_unbound

_INT16: Final = Struct("!h").pack
_INT32: Final = Struct("!i").pack

#: Run the portal that was bound last, to its end.
_EXECUTE: Final = b"E" + _INT32(9) + b"\0" + _INT32(0)
_NO_RESULT_FORMATS: Final = _INT16(0)

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
