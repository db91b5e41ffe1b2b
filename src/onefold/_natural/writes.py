"""Natural writes as flows. Arguments are checked where they are written.

What depends on the shape of a call alone is checked and prepared once (`plans.py`); values are checked each time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from onefold._kernel.derive import Part
from onefold._kernel.effects import Flow
from onefold._kernel.per_dialect import PerDialect
from onefold._kernel.ports import SpeaksDialect
from onefold._kernel.table_writes import (
    AddTo,
    FindRow,
    FindState,
    HashKey,
    InsertUnlessThere,
    MoveState,
    WritableTable,
)
from onefold._natural.argument_checks import check_among, check_columns, check_key, check_numbers, check_values
from onefold._natural.exclusive import lock, lock_number
from onefold._natural.insert_once import insert_once
from onefold._natural.ledger_entries import Whole, enter
from onefold._natural.plain_table import PlainTable
from onefold._natural.plans import TABLES_MAX, AddPlan, Comparison, InsertPlan, LockPlan, MovePlan, keep
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
    """Implements `NaturalWrites`, for one database: what it keeps of tables may hold for that only."""

    __slots__ = ("_sql", "tables")

    def __init__(self) -> None:
        self.tables: dict[str, WritableTable] = {}
        #: Of that database, once it is known.
        self._sql: NaturalDialect | None = None

    def _dialect(self, executor: SpeaksDialect) -> NaturalDialect:
        self._sql = _DIALECTS[executor.dialect]
        return self._sql

    def table(self, name: str, executor: SpeaksDialect) -> WritableTable:
        plain = str.__str__(name)
        known = self.tables.get(plain)
        return known or keep(self.tables, plain, PlainTable(plain, self._dialect(executor)), TABLES_MAX)

    def insert_once(
        self,
        table: WritableTable,
        values: Mapping[str, Any],
        *,
        on: str | Sequence[str],
        compare: bool | str | Sequence[str],
        among: Mapping[str, Any] | None,
    ) -> Callable[[], Flow[Any]]:
        # As most are written, where it is known and there is nothing to refuse.
        plan: InsertPlan | None = None
        if values.__class__ is dict and on.__class__ is str and compare.__class__ is bool and among is None:
            plan = table.plans.get((tuple(values), on, compare))
        if plan is None or values[plan.on[0]] is None:
            plan = _plan_insert("tx.insert_once", table, values, on, compare, among)
        return functools.partial(insert_once, table, plan, tuple(values.values()))

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
        key = _read_key(call, where)
        set_too = {} if also is None else check_values(call, "also", also, may_be_empty=True)
        if come_from.__class__ is str and to.__class__ is str and come_from != to:
            states: tuple[Any, ...] = (come_from,)
        else:
            states = _read_states(call, come_from, to)
        if expected_version is None:
            expected: tuple[int, ...] = ()
        elif version is None:
            raise ProgrammerError(f"{call}: expected_version={expected_version!r} needs version=, the column it is in")
        else:
            expected = (expected_version,)
        if state.__class__ is not str or not (version is None or version.__class__ is str):
            _check_names(call, state, version)
        shape = ("move", tuple(key), state, len(states), version, len(expected), tuple(set_too))
        plan = table.plans.get(shape)
        if plan is None:
            move = MoveState(
                key=tuple(key),
                state=state,
                come_from=len(states),
                version=version,
                expects=bool(expected),
                also=tuple(set_too),
            )
            plan = keep(table.plans, shape, _plan_move(call, table, move))
        values = (to, *set_too.values(), *key.values(), *states, *expected)
        return functools.partial(transition, table, plan, values)

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
        executor: SpeaksDialect,
        in_part: Whole,
        or_nothing: Whole,
    ) -> Callable[[], Flow[Any]]:
        call = "tx.ledger_entry"
        plan: InsertPlan | None = None
        if values.__class__ is dict and on.__class__ is str and compare.__class__ is bool:
            plan = table.plans.get((tuple(values), on, compare))
        if plan is None or values[plan.on[0]] is None:
            plan = _plan_insert(call, table, values, on, compare, None)
        given = tuple(values.values())
        if balance is None and where is None and add is None:
            return functools.partial(enter, table, plan, given, None, None, ())
        if balance is None or where is None or add is None:
            some = [name for name, value in (("balance", balance), ("where", where), ("add", add)) if value is not None]
            raise ProgrammerError(f"{call}: balance, where and add are given together, or none of them; not {some}")
        key, numbers = _read_key(call, where), check_values(call, "add", add)
        check_numbers(call, "add", numbers)
        shape = ("add", tuple(numbers), tuple(key))
        addition = balance.plans.get(shape)
        if addition is None:
            addition = keep(balance.plans, shape, _plan_addition(balance, tuple(numbers), tuple(key)))
        make = functools.partial(enter, table, plan, given, balance, addition, (*numbers.values(), *key.values()))
        # Where a statement that the server refuses aborts the transaction, no savepoint is needed.
        sql = self._sql or self._dialect(executor)
        return functools.partial(or_nothing if sql.ABORTS else in_part, make)

    def lock_row(
        self, table: WritableTable, *, where: Mapping[str, Any], executor: SpeaksDialect, part: Callable[[], int]
    ) -> Callable[[], Flow[Any]]:
        key = _read_key("tx.lock_row", where)
        shape = ("lock", tuple(key))
        plan = table.plans.get(shape)
        if plan is None:
            plan = keep(table.plans, shape, _plan_lock(table, tuple(key)))
        return functools.partial(lock_row, table, plan, tuple(key.values()), self._sql or self._dialect(executor), part)

    def exclusive(
        self, executor: SpeaksDialect, parts: tuple[Part, ...], *, wait_s: float, part: Callable[[], int], writing: bool
    ) -> Callable[[], Flow[None]]:
        number = lock_number(parts)  # refuses what is not a key
        if not 0 <= wait_s <= WAIT_S_MAX:
            raise ProgrammerError(f"tx.exclusive: wait_s={wait_s!r} must be between 0 and {WAIT_S_MAX:g} seconds")
        sql = self._sql or self._dialect(executor)
        return functools.partial(lock, sql, parts, number, wait_s, part=part, writing=writing)


def _read_key(call: str, where: object) -> dict[str, Any]:
    if where.__class__ is dict and len(where) == 1:
        [(_, value)] = where.items()
        if value is not None:
            return where
    key = check_values(call, "where", where)
    check_key(call, "where", key)
    return key


def _plan_insert(
    call: str,
    table: WritableTable,
    given: Mapping[str, Any],
    on: str | Sequence[str],
    compare: bool | str | Sequence[str],
    among: Mapping[str, Any] | None,
) -> InsertPlan:
    values = check_values(call, "values", given)
    key = on if on.__class__ is str else check_columns(call, "on", on)
    compared = compare if isinstance(compare, bool | str) else check_columns(call, "compare", compare)
    conditions = check_among(call, among, values) if among is not None else {}
    # A condition stands in the statement as it is written: 1 is not true there, though they are equal here.
    written = tuple((column, value.__class__, value) for column, value in conditions.items())
    shape = (tuple(values), key, compared, *written)
    plan: InsertPlan | None = table.plans.get(shape)
    if plan is None:
        plan = keep(table.plans, shape, _make_insert_plan(call, table, tuple(values), key, compared, conditions))
    check_key(call, "on", {column: values[column] for column in plan.on})
    return plan


def _make_insert_plan(
    call: str,
    table: WritableTable,
    columns: tuple[str, ...],
    on: str | tuple[str, ...],
    compare: bool | str | tuple[str, ...],
    among: Mapping[str, Any],
) -> InsertPlan:
    key = check_columns(call, "on", on)
    missing = [column for column in key if column not in columns]
    if missing:
        raise ProgrammerError(
            f"{call}: on={on!r} names {missing[0]!r}, which the values do not have. A business key is known before the "
            "row is: one that the database makes up would be another one each time"
        )
    comparison = _read_comparison(call, compare, columns, key)
    table.check_columns((*columns, *among))
    compared = () if comparison is None else comparison.columns
    look = FindRow(columns=columns, key=key, among=among, compare=compared)
    return InsertPlan(
        columns=columns,
        on=key,
        among=among,
        comparison=comparison,
        insert=table.prepare(InsertUnlessThere(columns=columns, on=key, among=among)),
        look=look,
        find=table.prepare(look),
    )


def _read_comparison(
    call: str, compare: bool | str | tuple[str, ...], columns: tuple[str, ...], key: tuple[str, ...]
) -> Comparison | None:
    rest = tuple(column for column in columns if column not in key)
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
            unknown = [column for column in compare if column not in columns]
            if unknown:
                raise ProgrammerError(f"{call}: compare names {unknown[0]!r}, which the values do not have")
            return Comparison(compare, tells=False)


def _plan_move(call: str, table: WritableTable, move: MoveState) -> MovePlan:
    written = (move.state, *(() if move.version is None else (move.version,)), *move.also)
    if len(set(written)) != len(written):
        raise ProgrammerError(f"{call}: state, version and also name a column twice: {', '.join(map(str, written))}")
    if move.state in move.key:
        raise ProgrammerError(f"{call}: where has {move.state!r}, the state itself: say it with come_from")
    table.check_columns((*move.key, *written))
    return MovePlan(shape=move, move=table.prepare(move), find=table.prepare(FindState(move)))


def _plan_addition(table: WritableTable, numbers: tuple[str, ...], key: tuple[str, ...]) -> AddPlan:
    table.check_columns((*key, *numbers))
    shape = AddTo(add=numbers, key=key)
    return AddPlan(shape=shape, add=table.prepare(shape))


def _plan_lock(table: WritableTable, key: tuple[str, ...]) -> LockPlan:
    table.check_columns(key)
    find = table.prepare(FindRow(columns=key, key=key, locked=True))
    return LockPlan(key=key, find=find, hash=table.prepare(HashKey(key)))


def _check_names(call: str, state: object, version: object) -> None:
    """What cannot be asked for among plans is refused before."""
    for setting, name in (("state", state), ("version", version)):
        if not isinstance(name, str) and not (name is None and setting == "version"):
            raise ProgrammerError(f"{call}: {setting}={name!r:.80} must be a text: the name of a column")


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
