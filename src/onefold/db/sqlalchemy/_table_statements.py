"""Statements for writes to a Table or a mapped class, put together by SQLAlchemy: their values are given later.

To put a statement together costs as much as to execute it, so it is done once for each write. A value that is an
expression of SQL (`func.now()`) cannot be given later: then the statement is made with the values in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ARRAY,
    ClauseElement,
    ColumnElement,
    Table,
    and_,
    bindparam,
    cast,
    false,
    func,
    inspect,
    literal,
    null,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Mapper
from sqlalchemy.types import JSON, TypeDecorator

from onefold._kernel.table_writes import (
    AddTo,
    FindRow,
    FindState,
    HashKey,
    InsertUnlessThere,
    MoveState,
    MoveValues,
    Write,
)
from onefold.errors import ProgrammerError

_INSERTS: dict[str, Callable[[Any], Any]] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


class Ready(NamedTuple):
    """A statement, to be executed with these parameters."""

    statement: Any
    parameters: dict[str, Any] | None
    answers: int
    """How many columns stand in front of the row."""


class PreparedWrite:
    """A write to one table, and its statements by dialect."""

    __slots__ = ("_made", "_table", "write")

    def __init__(self, table: TableDefinition, write: Write) -> None:
        self._table = table
        self.write = write
        self._made: dict[str, tuple[Any, int, list[int]]] = {}

    def find_other(self, values: tuple[Any, ...], dialect: str) -> Any:
        """A query for the row that was looked for, of whatever class it is; None: there are no other classes."""
        write, discriminator = self.write, self._table.discriminator
        if discriminator is None or not isinstance(write, FindRow):
            return None
        return _Builder(self._table, dialect).select_discriminator(
            self._table.columns[discriminator.attribute], write, values
        )

    def ready(self, values: tuple[Any, ...], dialect: str) -> Ready:
        # What is added has the type of its value, not of the column: an interval to a time, 0.5 to an integer.
        if isinstance(self.write, AddTo) or any(map(_is_expression, values)):
            statement, answers = _Builder(self._table, dialect).build(self.write, values)
            return Ready(statement, None, answers)
        if dialect not in self._made:
            self._made[dialect] = self._make(len(values), dialect)
        statement, answers, taken = self._made[dialect]
        return Ready(statement, {_name(place): values[number] for place, number in enumerate(taken)}, answers)

    def _make(self, count: int, dialect: str) -> tuple[Any, int, list[int]]:
        taken: list[int] = []
        statement, answers = _Builder(self._table, dialect).build(
            self.write, tuple(_Slot(number, taken) for number in range(count))
        )
        return statement, answers, taken


class _Slot:
    """Stands for a value. Each use of it is a parameter of its own, as values in a statement are."""

    __slots__ = ("number", "taken")

    def __init__(self, number: int, taken: list[int]) -> None:
        self.number = number
        self.taken = taken

    def bind(self, kind: Any) -> Any:
        self.taken.append(self.number)
        return bindparam(_name(len(self.taken) - 1), type_=kind)


def _name(place: int) -> str:
    return f"onefold_value_{place}"


class Discriminator(NamedTuple):
    """What distinguishes the classes of a table."""

    attribute: str
    identity: Any
    own: frozenset[Any]
    """What it is for the class and for those below it."""


class TableDefinition:
    """A Table or a mapped class, and what is known of it for all transactions."""

    __slots__ = ("columns", "discriminator", "given", "keys", "mapped", "name", "plans")

    def __init__(self, given: object) -> None:
        self.given: Any = given
        self.mapped, table, self.columns = _read(given)
        self.name = table.fullname
        #: Where classes share a table: the column that has a row's class, and its value for this one. A session sets
        #: it for what it inserts; a statement does not.
        self.discriminator = _read_discriminator(self.mapped, self.columns)
        #: Of a row.
        self.keys = tuple(column.key for column in table.columns)
        self.plans: dict[Any, Any] = {}


class _Builder:
    """Puts statements together, with values in them or with places for values."""

    __slots__ = ("_columns", "_dialect", "_discriminator", "_given")

    def __init__(self, table: TableDefinition, dialect: str) -> None:
        self._given = table.given
        self._discriminator = table.discriminator
        self._columns = table.columns
        self._dialect = dialect

    def build(self, write: Write, values: tuple[Any, ...]) -> tuple[Any, int]:
        """The statement, and how many columns stand in front of the row."""
        match write:
            case InsertUnlessThere():
                return self._insert(write, values), 1
            case FindRow():
                given = dict(zip(write.columns, values, strict=True))
                compared = [_same(self._columns[column], given[column], self._dialect) for column in write.compare]
                query = select(*compared, self._given).where(self._found_by(write, given))
                # Of this table alone: what a mapping loads beside it by an outer join cannot be locked.
                return query.with_for_update(of=self._given) if write.locked else query, len(compared)
            case HashKey(key):
                return select(*self._hashes(key, values)), len(key)
            case MoveState():
                return self._move(write, values), 3
            case FindState(move):
                return self._find_state(move, values), 5
            case AddTo():
                return self._add(write, values), 0

    def select_discriminator(self, column: Any, write: FindRow, values: tuple[Any, ...]) -> Any:
        """The discriminator of a row, whatever its class."""
        return select(column.table.c[column.key]).where(
            self._found_by(write, dict(zip(write.columns, values, strict=True)))
        )

    def _found_by(self, write: FindRow, given: Mapping[str, Any]) -> Any:
        key = self._key(write.key, [given[column] for column in write.key], self._dialect)
        return and_(*key, *self._conditions(write.among))

    def _hashes(self, key: tuple[str, ...], values: tuple[Any, ...]) -> list[Any]:
        columns = zip((self._columns[column] for column in key), values, strict=True)
        return [
            func.pg_catalog.hash_array_extended(postgresql.array([_stored(column, value, "postgresql")]), 0).label(None)
            for column, value in columns
        ]

    def _insert(self, write: InsertUnlessThere, values: tuple[Any, ...]) -> Any:
        insert = _INSERTS[self._dialect](self._given)
        where = and_(*self._conditions(write.among)) if write.among else None
        keys = [self._columns[column].is_not(None) for column in write.on]
        indexed = func.coalesce(and_(*keys, *self._conditions(write.among)), false())
        row = self._changes(write.columns, values)
        if self._discriminator is not None and self._discriminator.attribute not in write.columns:
            row[self._columns[self._discriminator.attribute]] = self._discriminator.identity
        return (
            insert.values(row)
            .on_conflict_do_nothing(index_elements=[self._columns[column] for column in write.on], index_where=where)
            .returning(indexed, self._given)
        )

    def _move(self, write: MoveState, values: tuple[Any, ...]) -> Any:
        move, state = MoveValues.read(write, values), self._columns[write.state]
        changes = self._changes((write.state, *write.also), (move.to, *move.also))
        come_from = [_given(state, value) for value in move.come_from]
        conditions = [*self._key(write.key, move.key, None), state.in_(come_from), state != _given(state, move.to)]
        version: Any = null()
        if write.version is not None:
            version = self._columns[write.version]
            changes[version] = version + 1
            if write.expects:
                conditions.append(version == _given(version, move.expected))
        # Under names of their own: the row has the columns themselves.
        outcome = (state == _given(state, move.to), state.label(None), version.label(None))
        return update(self._given).where(*conditions).values(changes).returning(*outcome, self._given)

    def _find_state(self, write: MoveState, values: tuple[Any, ...]) -> Any:
        move, state = MoveValues.read(write, values), self._columns[write.state]
        version: Any = null() if write.version is None else self._columns[write.version]
        current: Any = true()
        if write.version is not None and write.expects:
            current = version == _given(version, move.expected)
        # Under names of their own: the row has the columns themselves.
        there = state == _given(state, move.to)
        allowed = state.in_([_given(state, value) for value in move.come_from])
        reasons = (there, allowed, current, state.label(None), version.label(None))
        return select(*reasons, self._given).where(*self._key(write.key, move.key, None))

    def _add(self, write: AddTo, values: tuple[Any, ...]) -> Any:
        columns = [self._columns[column] for column in write.add]
        changes = {column: column + _given(column, number) for column, number in zip(columns, values, strict=False)}
        not_null = [column.is_not(None) for column in columns]
        key = self._key(write.key, values[len(columns) :], None)
        return update(self._given).where(*key, *not_null).values(changes).returning(self._given)

    def _changes(self, columns: tuple[str, ...], values: tuple[Any, ...]) -> dict[Any, Any]:
        places = zip((self._columns[column] for column in columns), values, strict=True)
        return {column: _given(column, value) for column, value in places}

    def _key(self, key: tuple[str, ...], values: Sequence[Any], dialect: str | None) -> list[ColumnElement[bool]]:
        """By the column's own type where it is given: an index may have rounded or cut what it stores."""
        return [
            self._columns[column] == _stored(self._columns[column], value, dialect)
            for column, value in zip(key, values, strict=True)
        ]

    def _conditions(self, among: Mapping[str, Any]) -> list[ColumnElement[bool]]:
        return [
            column.is_(None) if value is None else column == literal(value, column.type, literal_execute=True)
            for column, value in ((self._columns[name], value) for name, value in among.items())
        ]


def _read_discriminator(mapped: Mapper[Any] | None, columns: Mapping[str, Any]) -> Discriminator | None:
    """None: there are no such classes, or another expression than a column distinguishes them."""
    if mapped is None or mapped.polymorphic_on is None or mapped.polymorphic_identity is None:
        return None
    own = frozenset(mapper.polymorphic_identity for mapper in mapped.self_and_descendants)
    found = (attribute for attribute, column in columns.items() if column is mapped.polymorphic_on)
    return next((Discriminator(attribute, mapped.polymorphic_identity, own) for attribute in found), None)


def _is_expression(value: object) -> bool:
    return isinstance(value, ClauseElement) or hasattr(value, "__clause_element__")


def _given(column: Any, value: Any) -> Any:
    """A value where SQLAlchemy takes any, with the type of the column."""
    return value.bind(column.type) if isinstance(value, _Slot) else value


def _bound(column: Any, value: Any) -> Any:
    return value.bind(column.type) if isinstance(value, _Slot) else literal(value, column.type)


def _stored(column: Any, value: Any, dialect: str | None) -> Any:
    """A value as the column stores it. Only Postgres has types that change it: precisions, and lengths."""
    bound = _bound(column, value)
    return cast(bound, column.type) if dialect == "postgresql" else bound


def _same(column: Any, value: Any, dialect: str) -> Any:
    if dialect == "postgresql" and (form := _comparable(column.type)) is not None:
        return cast(column, form).is_not_distinct_from(cast(_bound(column, value), form))
    return column.is_not_distinct_from(_stored(column, value, dialect))


def _comparable(kind: Any) -> Any:
    """The type to compare a type's values in that has no equality, as JSON and what is made of it; None: its own."""
    match kind:
        case postgresql.JSONB():
            return None
        case JSON():
            return postgresql.JSONB
        case ARRAY() if (form := _comparable(kind.item_type)) is not None:
            return postgresql.ARRAY(form)
        case postgresql.DOMAIN():
            return _comparable(kind.data_type)
        case TypeDecorator():
            return _comparable(kind.impl_instance)
        case _:
            return None


def _read(given: object) -> tuple[Mapper[Any] | None, Table, Mapping[str, Any]]:
    """The mapper, if it is a mapped class, the table, and its columns by the names that its user has for them."""
    if isinstance(given, Table):
        return None, given, {column.key: column for column in given.columns}
    mapper = inspect(given, raiseerr=False) if isinstance(given, type) else None
    if not isinstance(mapper, Mapper):
        raise ProgrammerError(
            f"table {given!r:.80} is neither the name of a table, nor a Table, nor a mapped class of SQLAlchemy"
        )
    table = mapper.local_table
    if len(mapper.tables) != 1 or not isinstance(table, Table):
        names = ", ".join(sorted(str(table) for table in mapper.tables))
        raise ProgrammerError(
            f"{mapper.class_.__name__} is mapped to several tables ({names}): write to one Table of them"
        )
    columns = ((attribute.key, attribute.columns[0]) for attribute in mapper.column_attrs)
    return mapper, table, {key: column for key, column in columns if isinstance(getattr(column, "table", None), Table)}
