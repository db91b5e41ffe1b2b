"""The door to natural writes: arguments are checked where they are written, and become flows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onefold._kernel.derive import Part
from onefold._kernel.effects import Flow
from onefold._kernel.per_dialect import PerDialect
from onefold._kernel.table_writes import AddTo, InsertUnlessThere, MoveState, WritableTable
from onefold._natural.argument_checks import check_among, check_columns, check_key, check_numbers, check_values
from onefold._natural.exclusive import lock, lock_number
from onefold._natural.insert_once import Comparison, insert_once
from onefold._natural.ledger_entries import Whole, enter
from onefold._natural.plain_table import PlainTable
from onefold._natural.row_locks import lock_row
from onefold._natural.sql.natural_dialect import NaturalDialect
from onefold._natural.transitions import transition
from onefold.errors import ProgrammerError

WAIT_S_MAX: Final = 3600.0

_COMPARES: Final = "False, True, 'tell', or the columns to compare"


def _postgres() -> NaturalDialect:
    from onefold._natural.sql import postgres

    return postgres


def _sqlite() -> NaturalDialect:
    from onefold._natural.sql import sqlite

    return sqlite


_DIALECTS: Final = PerDialect(postgres=_postgres, sqlite=_sqlite)


class TableWriter:
    """Implements `NaturalWrites`. It holds nothing: one is enough for all."""

    __slots__ = ()

    def table(self, name: str, dialect: str) -> WritableTable:
        return PlainTable(name, _DIALECTS[dialect])

    def insert_once(
        self,
        table: WritableTable,
        values: Mapping[str, Any],
        *,
        on: str | Sequence[str],
        compare: bool | str | Sequence[str],
        among: Mapping[str, Any] | None,
    ) -> Callable[[], Flow[Any]]:
        insert, comparison = _read_insert("tx.insert_once", table, values, on, compare, among)
        return lambda: insert_once(table, insert, comparison)

    def transition(
        self,
        table: WritableTable,
        *,
        where: Mapping[str, Any],
        state: str,
        come_from: object,
        to: object,
        version: str | None,
        expected_version: int | None,
        also: Mapping[str, Any] | None,
    ) -> Callable[[], Flow[Any]]:
        call = "tx.transition"
        key = check_values(call, "where", where)
        check_key(call, "where", key)
        set_too = {} if also is None else check_values(call, "also", also, may_be_empty=True)
        states = _read_states(call, come_from, to)
        if expected_version is not None and version is None:
            raise ProgrammerError(f"{call}: expected_version={expected_version!r} needs version=, the column it is in")
        written = [state, *([] if version is None else [version]), *set_too]
        if len(set(written)) != len(written):
            raise ProgrammerError(
                f"{call}: state, version and also name a column twice: {', '.join(map(str, written))}"
            )
        if state in key:
            raise ProgrammerError(f"{call}: where has {state!r}, the state itself: say it with come_from")
        table.check_columns((*key, *written))
        move = MoveState(
            key=key,
            state=state,
            come_from=states,
            to=to,
            version=version,
            expected_version=expected_version,
            also=set_too,
        )
        return lambda: transition(table, move)

    def ledger_entry(
        self,
        table: WritableTable,
        values: Mapping[str, Any],
        *,
        on: str | Sequence[str],
        compare: bool | str | Sequence[str],
        balance: WritableTable | None,
        where: Mapping[str, Any] | None,
        add: Mapping[str, Any] | None,
        dialect: str,
        in_part: Whole,
        or_nothing: Whole,
    ) -> Callable[[], Flow[Any]]:
        call = "tx.ledger_entry"
        insert, comparison = _read_insert(call, table, values, on, compare, None)
        given = [name for name, value in (("balance", balance), ("where", where), ("add", add)) if value is not None]
        if given and len(given) != 3:
            raise ProgrammerError(f"{call}: balance, where and add are given together, or none of them; not {given}")
        addition = None
        if balance is not None:
            key, numbers = check_values(call, "where", where), check_values(call, "add", add)
            check_key(call, "where", key)
            check_numbers(call, "add", numbers)
            balance.check_columns((*key, *numbers))
            addition = AddTo(key=key, add=numbers)
        make = functools.partial(enter, table, insert, comparison, balance, addition)
        if addition is None:
            return make
        # Where a statement that the server refuses aborts the transaction, no savepoint is needed.
        return functools.partial(or_nothing if _DIALECTS[dialect].ABORTS else in_part, make)

    def lock_row(
        self, table: WritableTable, *, where: Mapping[str, Any], dialect: str, part: int
    ) -> Callable[[], Flow[Any]]:
        key = check_values("tx.lock_row", "where", where)
        check_key("tx.lock_row", "where", key)
        table.check_columns(tuple(key))
        return lambda: lock_row(table, key, _DIALECTS[dialect], part)

    def exclusive(
        self, dialect: str, parts: tuple[Part, ...], *, wait_s: float, part: int, writing: bool
    ) -> Callable[[], Flow[None]]:
        lock_number(parts)  # refuses what is not a key
        if not 0 <= wait_s <= WAIT_S_MAX:
            raise ProgrammerError(f"tx.exclusive: wait_s={wait_s!r} must be between 0 and {WAIT_S_MAX:g} seconds")
        return lambda: lock(_DIALECTS[dialect], parts, wait_s, part=part, writing=writing)


def _read_insert(
    call: str,
    table: WritableTable,
    given: Mapping[str, Any],
    on: str | Sequence[str],
    compare: bool | str | Sequence[str],
    among: Mapping[str, Any] | None,
) -> tuple[InsertUnlessThere, Comparison | None]:
    values = check_values(call, "values", given)
    key = check_columns(call, "on", on)
    missing = [column for column in key if column not in values]
    if missing:
        raise ProgrammerError(
            f"{call}: on={on!r} names {missing[0]!r}, which the values do not have. A business key is known before the "
            "row is: one that the database makes up would be another one each time"
        )
    check_key(call, "on", {column: values[column] for column in key})
    conditions = check_among(call, among, values)
    comparison = _read_comparison(call, compare, values, key)
    table.check_columns((*values, *conditions))
    compared = () if comparison is None else comparison.columns
    return InsertUnlessThere(values=values, on=key, among=conditions, compared=compared), comparison


def _read_comparison(
    call: str, compare: bool | str | Sequence[str], values: Mapping[str, Any], key: tuple[str, ...]
) -> Comparison | None:
    rest = tuple(column for column in values if column not in key)
    match compare:
        case False:
            return None
        case True:
            return Comparison(rest, tells=False)
        case "tell":
            return Comparison(rest, tells=True)
        case str():
            raise ProgrammerError(f"{call}: compare={compare!r} must be {_COMPARES}")
        case _:
            columns = check_columns(call, "compare", compare)
            unknown = [column for column in columns if column not in values]
            if unknown:
                raise ProgrammerError(f"{call}: compare names {unknown[0]!r}, which the values do not have")
            return Comparison(columns, tells=False)


def _read_states(call: str, come_from: object, to: object) -> tuple[Any, ...]:
    states = tuple(come_from) if isinstance(come_from, list | tuple | set | frozenset) else (come_from,)
    if not states or to is None or any(state is None for state in states):
        raise ProgrammerError(
            f"{call}: come_from={come_from!r:.80}, to={to!r:.80}: give a state to go to and the states it may come "
            "from. NULL is none: it equals nothing"
        )
    if to in states:
        raise ProgrammerError(
            f"{call}: to={to!r:.80} is among come_from: each retry would move the row again. A row that is there "
            "already is told as such (`already there`)"
        )
    return states


#: For all transactions.
NATURAL_WRITES: Final = TableWriter()
