"""Batches whose values travel beside the text, in one round trip: messages of Postgres's extended protocol.

A server that refuses a statement, or a COMMIT, writes the statement to its log. Values that stand in the text would be
there to be read: answers, events, keys. Bound ones are not (log_parameter_max_length_on_error is 0 unless an
administrator asks for more). So a batch that commits is sent as Bind and Execute for each of its items, and one Sync at
the end: the first error makes the server skip the rest, COMMIT included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple

from onefold._kernel.effects import BatchItem, Boundary, Statement, Value
from onefold.db._postgres_session import as_ourselves
from onefold.db._postgres_text import crossing, qualify_tables
from onefold.errors import StatementRefused

_INT16: Final = Struct("!h").pack
_INT32: Final = Struct("!i").pack

#: Run the portal that was bound last, to its end.
_EXECUTE: Final = b"E" + _INT32(9) + b"\0" + _INT32(0)
_TEXT, _BINARY, _NULL = _INT16(0), _INT16(1), _INT32(-1)
_NO_RESULT_FORMATS: Final = _INT16(0)
_COUNT_BYTES: Final = 2

#: Beyond, they are named anew. A release of onefold has far fewer.
STATEMENTS_MAX: Final = 1000

#: Batches that are written once for all. Those with many events come in too many shapes to be kept.
_PLANNED_ITEMS_MAX: Final = 12
_PLANS_MAX: Final = 100


def has_secrets(items: Sequence[BatchItem]) -> bool:
    """Whether its values must be bound: it writes, and is sent alone or with its COMMIT."""
    if items[-1] is not Boundary.COMMIT and len(items) > 1:
        return False  # a claim: digests, ids and times
    return bool([item for item in items if type(item) is Statement and item.values])


def encode_value(value: Value) -> bytes | None:
    """A value as Postgres reads it: bytes as they are, the rest as text. None: NULL."""
    match value:
        case bytes() | None:
            return value
        case int():
            return b"%d" % value
        case str():
            return _text(value)
        case _:
            raise StatementRefused(f"a batch takes bytes, int, str and None; it was given {type(value).__name__}")


def _text(value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        data = b"\0"
    if b"\0" in data:
        raise StatementRefused(
            "Postgres text holds no NUL character and no half of a surrogate pair; store such a value as bytes"
        )
    return data


class Binder:
    """Writes batches for the sessions of one database. A statement is parsed once in a session, under a name."""

    __slots__ = ("_mark", "_named", "_plans")

    def __init__(self, mark: str) -> None:
        self._mark = mark
        #: By their texts: batches come in as many shapes as there are numbers of events, but have few of these.
        self._named: dict[tuple[str | None, str | BatchItem], NamedStatement] = {}
        #: By the texts of the items, where they come again and again.
        self._plans: dict[tuple[object, ...], _BatchPlan] = {}

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
        shape: tuple[object, ...] = (schema, handed_out, after)
        given: list[tuple[Value, ...]] = []
        for item in items:  # without a call for each: every request comes by here
            if type(item) is Statement:
                shape += (item.sql,)
                if item.values:
                    given += (item.values,)
            else:
                shape += (item,)
        plan: _BatchPlan | None
        try:
            plan = self._plans[shape]
        except KeyError:
            plan = self._plan(shape, items, after, schema, handed_out=handed_out)
        if plan is None or not plan.names <= prepared:
            whole = as_ourselves(items) if handed_out else items
            return self._write((*whole, *after), prepared, schema)
        messages = b""
        for (front, head), values in zip(plan.before, given, strict=True):
            messages += front + _bind(head, values)
        return messages + plan.behind, (), plan.last

    def _plan(
        self,
        shape: tuple[object, ...],
        items: Sequence[BatchItem],
        after: tuple[BatchItem | str, ...],
        schema: str | None,
        *,
        handed_out: bool,
    ) -> _BatchPlan | None:
        if len(items) > _PLANNED_ITEMS_MAX:
            return None
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()
        whole = (*(as_ourselves(items) if handed_out else items), *after)
        plan = self._plans[shape] = _plan([(self._find(item, schema), _values(item)) for item in whole])
        return plan

    def _write(
        self, items: Sequence[BatchItem | str], prepared: set[str], schema: str | None
    ) -> tuple[bytes, Collection[str], NamedStatement]:
        parts: list[bytes] = []
        new: set[str] = set()
        for item in items:
            it, values = self._find(item, schema), _values(item)
            # Each statement is parsed right before it is first executed: a ROLLBACK must come first that makes an
            # aborted transaction take others again.
            if it.name not in prepared and it.name not in new:
                new.add(it.name)
                parts.append(it.parse)
            parts.append(_bind(it.head, values) if values else it.head)
        del parts[-1]
        return b"".join(parts), new, it

    def _find(self, item: BatchItem | str, schema: str | None) -> NamedStatement:
        text = item.sql if isinstance(item, Statement) else item
        try:
            return self._named[schema, text]
        except KeyError:
            if len(self._named) >= STATEMENTS_MAX:
                self._named.clear()
            it = self._named[schema, text] = name_statement(item, self._mark, schema)
            return it


class _BatchPlan(NamedTuple):
    """The messages of batches of one shape, in a session that has all their statements."""

    names: frozenset[str]
    before: tuple[tuple[bytes, bytes], ...]
    """For each statement with values: what goes in front of it, and its head."""
    behind: bytes
    last: NamedStatement


def _plan(items: Sequence[tuple[NamedStatement, tuple[Value, ...]]]) -> _BatchPlan:
    before: list[tuple[bytes, bytes]] = []
    constant = b""
    for it, values in items[:-1]:
        if values:
            before.append((constant, it.head))
            constant = b""
        else:
            constant += it.head
    return _BatchPlan(frozenset(it.name for it, _ in items), tuple(before), constant, items[-1][0])


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
    sql = (
        qualify_tables(item.sql, schema)
        if isinstance(item, Statement)
        else item
        if isinstance(item, str)
        else crossing(item)
    )
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
    formats = data = b""
    for value in values:  # every request has a dozen: most are bytes, and the rest comes again and again
        match value:
            case bytes():
                formats += _BINARY
                data += _INT32(len(value)) + value
            case int():
                formats += _TEXT
                data += _short_field(value)
            case str() if len(value) <= _SHORT:
                formats += _TEXT
                data += _short_field(value)
            case _:
                formats += _TEXT
                data += _field(value)
    count = head[-_COUNT_BYTES:]
    return _message(b"B", head + formats + count + data + _NO_RESULT_FORMATS) + _EXECUTE


def _field(value: Value) -> bytes:
    text = encode_value(value)
    return _NULL if text is None else _INT32(len(text)) + text


#: Operations, spans, statuses and names.
_SHORT: Final = 100
_short_field = lru_cache(maxsize=1000)(_field)
