"""One row per business key: who made it, whether it is the same, and what is refused, on every driver."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from sqlalchemy import ARRAY, JSON, Column, DateTime, MetaData, Numeric, String, Table
from sqlalchemy.dialects.postgresql import DOMAIN, JSONB

from onefold import InsertOutcome
from onefold.errors import ProgrammerError, RowDiffers, SerializationFailed, TransactionMisused, UniqueViolated
from tests.natural.stages import PLAIN, TABLES, WAYS, Order, Stage, address_for, look, opened, refused


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}".replace(" ", "-"))
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    driver, form = request.param
    async with opened(driver, address_for(request, driver), form) as stage:
        yield stage


async def test_the_first_call_creates_and_every_other_finds_the_row(stage: Stage) -> None:
    orders = stage.table("orders")
    values = stage.named({"id": "o1", "total": Decimal(5000)})
    if not stage.is_postgres:
        values = stage.named({"id": "o1", "total": 5000 if stage.form == "plain" else Decimal(5000)})
    key = stage.name("id")
    async with stage.transaction() as tx:
        made = await tx.insert_once(orders, values, on=key)
        row, created = made
        assert (created, bool(made), made.outcome) == (True, True, InsertOutcome.CREATED)
        assert (stage.read(row, "id"), stage.read(row, "total")) == ("o1", 5000)
        assert stage.read(row, "note") == "none"  # what the database, or the class, has made up
        again = await tx.insert_once(orders, values, on=key)
        assert (again.created, bool(again), again.outcome) == (False, False, InsertOutcome.EXISTING)
        assert again.row == row
    async with stage.transaction() as tx:
        later = await tx.insert_once(orders, {**values, "note": "another"}, on=[key])
        assert later.outcome is InsertOutcome.EXISTING
        assert stage.read(later.row, "note") == "none"
    assert stage.outside("SELECT id, note FROM orders") == [("o1", "none")]


async def test_another_payload_under_the_same_key_is_an_error_where_it_is_compared(stage: Stage) -> None:
    orders, key = stage.table("orders"), stage.name("id")
    values = stage.named({"id": "o1", "tenant": "acme", "number": 7, "email": None})
    async with stage.transaction() as tx:
        assert (await tx.insert_once(orders, values, on=key, compare=True)).created
        assert (await tx.insert_once(orders, values, on=key, compare=True)).outcome is InsertOutcome.SAME
        other = {**values, "number": 8, "email": "a@b.c"}
        with refused(RowDiffers, "orders", "o1", "number, email") as caught:
            await tx.insert_once(orders, other, on=key, compare=True)
        assert caught.value.columns == ("number", "email")
        told = await tx.insert_once(orders, other, on=key, compare="tell")
        assert (told.outcome, told.created, told.differing) == (InsertOutcome.DIFFERENT, False, ("number", "email"))
        assert (await tx.insert_once(orders, other, on=key, compare=["tenant"])).outcome is InsertOutcome.SAME
    assert stage.outside("SELECT number, email FROM orders") == [(7, None)]


async def test_a_key_may_have_several_columns_and_a_partial_index(stage: Stage) -> None:
    orders = stage.table("orders")
    async with stage.transaction() as tx:
        first = await tx.insert_once(
            orders, stage.named({"id": "o1", "tenant": "a", "number": 1}), on=["tenant", "number"]
        )
        second = await tx.insert_once(
            orders, stage.named({"id": "o2", "tenant": "a", "number": 1}), on=("tenant", "number")
        )
        third = await tx.insert_once(
            orders, stage.named({"id": "o3", "tenant": "a", "number": 2}), on=["tenant", "number"]
        )
        assert [each.created for each in (first, second, third)] == [True, False, True]
        assert stage.read(second.row, "id") == "o1"
        among = stage.named({"status": "open"})
        for number, created in (("p1", True), ("p2", False)):
            values = stage.named({"id": number, "email": "a@b.c", "status": "open"})
            found = await tx.insert_once(orders, values, on="email", among=among)
            assert (found.created, stage.read(found.row, "id")) == (created, "p1")
        with refused(ProgrammerError, "not among"):
            await tx.insert_once(
                orders, stage.named({"id": "p3", "email": "x", "status": "new"}), on="email", among=among
            )


class Status(str, Enum):  # noqa: UP042 (what str() says of it is not its value)
    OPEN = "open"


async def test_a_condition_may_be_a_member_of_an_enumeration(plain: Stage) -> None:
    for created in (True, False):
        async with plain.transaction() as tx:
            values = {"id": f"o{created}", "email": "x", "status": "open"}
            found = await tx.insert_once("orders", values, on="email", among={"status": Status.OPEN})
            assert found.created is created


async def test_what_cannot_be_a_key_is_refused_before_anything_is_sent(stage: Stage) -> None:
    orders, key = stage.table("orders"), stage.name("id")
    async with stage.transaction() as tx:
        wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
            ({key: None}, {"on": key}, "None"),
            ({"note": "x"}, {"on": key}, "do not have"),
            ({}, {"on": key}, "values by column"),
            ({key: "x"}, {"on": []}, "must be a column"),
            ({key: "x"}, {"on": [key, key]}, "different"),
            ({key: "x"}, {"on": [key, [key]]}, "must be a column"),
            ({key: "x"}, {"on": key, "compare": "yes"}, "tell"),
            ({key: "x"}, {"on": key, "compare": ["note"]}, "note"),
            ({key: "x", 'note" = 1; --': 1}, {"on": key}, "note"),
            ({key: "x"}, {"on": key, "among": {"status; DROP": 1}}, "DROP"),
            ({key: "x"}, {"on": key, "among": {stage.name("status"): "a'b"}}, "text of letters"),
        ]
        for values, how, words in wrong:
            with refused(ProgrammerError, words):
                tx.insert_once(orders, values, **how)
        assert (await tx.insert_once(orders, {key: "fine"}, on=key)).created


async def test_a_table_without_the_unique_index_is_named_with_its_columns(stage: Stage) -> None:
    with refused(ProgrammerError, "orders has no unique index on (note)"):
        async with stage.transaction() as tx:
            await tx.insert_once(stage.table("orders"), stage.named({"id": "o1", "note": "x"}), on="note")
    with refused(ProgrammerError, "orders has no unique index on (email)", "among"):
        async with stage.transaction() as tx:
            await tx.insert_once(stage.table("orders"), stage.named({"id": "o1", "email": "x"}), on="email")
    assert stage.outside("SELECT count(*) FROM orders") == [(0,)]


async def test_a_row_that_breaks_another_unique_index_is_refused_as_such(stage: Stage) -> None:
    orders, key = stage.table("orders"), stage.name("id")
    with refused(UniqueViolated):
        async with stage.transaction() as tx:
            for number in ("o1", "o2"):
                await tx.insert_once(orders, stage.named({"id": number, "tenant": "a", "number": 1}), on=key)
    assert stage.outside("SELECT count(*) FROM orders") == [(0,)]


async def test_what_rolls_back_with_a_savepoint_is_created_again(stage: Stage) -> None:
    orders, key = stage.table("orders"), stage.name("id")
    async with stage.transaction() as tx:
        with pytest.raises(ZeroDivisionError):
            await in_savepoint(stage, tx, orders, key)
        assert (await tx.insert_once(orders, {key: "o1"}, on=key)).created
    assert stage.outside("SELECT id FROM orders") == [("o1",)]


async def in_savepoint(stage: Stage, tx: Any, orders: Any, key: str) -> None:
    if stage.asynchronous:
        async with tx.savepoint():
            assert (await tx.insert_once(orders, {key: "o1"}, on=key)).created
            raise ZeroDivisionError
    with tx.savepoint():
        assert (await tx.insert_once(orders, {key: "o1"}, on=key)).created
        raise ZeroDivisionError


@pytest.fixture(params=PLAIN)
async def plain(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request.param, address_for(request, request.param)) as stage:
        yield stage


async def test_names_are_quoted_and_hostile_ones_refused(plain: Stage) -> None:
    async with plain.transaction() as tx:
        reserved = await tx.insert_once("order", {"group": "a", "select": "b"}, on="group", compare=True)
        assert reserved.row == {"group": "a", "select": "b"}
        again = await tx.insert_once("order", {"group": "a", "select": "b"}, on="group", compare=True)
        assert again.outcome is InsertOutcome.SAME
        schema = "public" if plain.is_postgres else "main"
        assert (await tx.insert_once(f"{schema}.orders", {"id": "o1"}, on="id")).created
        for name in (
            'orders"; DROP TABLE orders; --',
            "a.b.c",
            "",
            "1st",
            "x" * 64,
            "orders\0",
            "orders$1",
            "o?1",
            "%s",
        ):
            with refused(ProgrammerError, "table"):
                tx.insert_once(name, {"id": "o2"}, on="id")
        with refused(ProgrammerError, "SQLAlchemy engine"):
            tx.insert_once(Order, {"key": "o2"}, on="key")
    for table, column in (("missing", "id"), ("orders", "missing")):
        with refused(ProgrammerError, "is not there", "missing"):
            async with plain.transaction() as tx:
                await tx.insert_once(table, {"id": "o2", column: "x"}, on="id")


async def test_a_call_that_is_not_awaited_commits_nothing(request: pytest.FixtureRequest) -> None:
    async with opened("sqlite-async", address_for(request, "sqlite")) as stage:
        with refused(TransactionMisused, "await tx.insert_once"):
            async with stage.transaction() as tx:
                tx.insert_once("orders", {"id": "o1"}, on="id")
        async with stage.transaction() as tx:
            pending = tx.insert_once("orders", {"id": "o1"}, on="id")
            for use in (bool, tuple, lambda pending: pending.created):
                with refused(ProgrammerError, "has to be awaited"):
                    use(pending)
            assert (await pending).created


async def test_a_mapped_row_is_the_instance_of_the_session_and_is_refreshed(request: pytest.FixtureRequest) -> None:
    for driver in ("psycopg engine", "asyncpg engine"):
        address = address_for(request, driver)
        async with opened(driver, address, "mapped") as stage:
            async with stage.transaction() as tx:
                order, created = await tx.insert_once(Order, {"key": "o1", "note": "old"}, on="key")
                assert created
                assert isinstance(order, Order)
                tx.session().info["kept"] = order
                order.note = "changed, and not written yet"
                again, created = await tx.insert_once(Order, {"key": "o1"}, on="key")
                assert again is order
                assert (created, order.note) == (False, "changed, and not written yet")
            assert stage.outside("SELECT note FROM orders") == [("changed, and not written yet",)]
            async with stage.transaction() as tx:
                seen, _ = await tx.insert_once(Order, {"key": "o1"}, on="key")
                look(address, "UPDATE orders SET note = 'from elsewhere'")
                again, _ = await tx.insert_once(Order, {"key": "o1"}, on="key")
                assert again is seen
                assert seen.note == "from elsewhere"


TYPES = """
CREATE DOMAIN document AS json;
CREATE DOMAIN small_document AS document CHECK (length(VALUE::text) < 100);
CREATE DOMAIN documents AS json[];
CREATE TABLE typed (
    id text PRIMARY KEY, price numeric(10,2), ratio real, code char(8), at timestamptz(0), plain json, tree jsonb,
    spot point, plains json[], small small_document, many documents, smalls small_document[], codes varchar(4)[]
)
"""


@pytest.mark.parametrize("driver", ["psycopg", "psycopg-async", "asyncpg"])
async def test_values_are_the_same_where_the_database_says_so(request: pytest.FixtureRequest, driver: str) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, TYPES)
    berlin = datetime.timezone(datetime.timedelta(hours=2))
    moment = datetime.datetime(2026, 5, 1, 12, 0, 0, 400_000, tzinfo=datetime.UTC)
    values = {
        "id": "t1",
        "price": Decimal("5000.004"),
        "ratio": 0.1,
        "code": "ab",
        "at": moment,
        "plain": '{"a": 1, "b": [1, 2]}',
        "tree": '{"a": 1, "b": [1, 2]}',
        "plains": ['{"a": 1, "b": 2}', "3"],
        "small": '{"a": 1, "b": 2}',
        "many": ['{"a": 1, "b": 2}', "3"],
        "smalls": ['{"a": 1, "b": 2}', "3"],
        "codes": ["a", "b"],
    }
    same: dict[str, Any] = {
        "price": Decimal("5000.00"),
        "code": "ab     ",
        "at": moment.astimezone(berlin),
        "plain": '{"b":[1,2],"a":1}',
        "tree": '{"b":[1,2],"a":1.0}',
        "plains": ['{"b":2,"a":1}', "3"],
        "small": '{"b":2,"a":1}',
        "many": ['{"b":2,"a":1}', "3"],
        "smalls": ['{"b":2,"a":1}', "3"],
    }
    other: dict[str, Any] = {
        "price": Decimal("5000.01"),
        "ratio": 0.2,
        "code": "AB",
        "at": moment + datetime.timedelta(seconds=1),
        "plain": "{}",
        "tree": "{}",
        "plains": ["3", '{"a": 1, "b": 2}'],
        "small": "{}",
        "many": ["3"],
        "smalls": [],
        "codes": ["b", "a"],
    }
    async with opened(driver, address) as stage, stage.transaction() as tx:
        assert (await tx.insert_once("typed", values, on="id", compare=True)).created
        assert (await tx.insert_once("typed", values, on="id", compare=True)).outcome is InsertOutcome.SAME
        for column, value in same.items():
            found = await tx.insert_once("typed", {**values, column: value}, on="id", compare="tell")
            assert found.outcome is InsertOutcome.SAME, column
        for column, value in [*other.items(), *((column, None) for column in other)]:
            found = await tx.insert_once("typed", {**values, column: value}, on="id", compare="tell")
            assert found.differing == (column,)


@pytest.mark.parametrize("driver", ["psycopg engine", "asyncpg engine"])
async def test_types_of_sqlalchemy_hold(request: pytest.FixtureRequest, driver: str) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, TYPES)
    typed = Table(
        "typed",
        MetaData(),
        Column("id", String, primary_key=True),
        Column("price", Numeric(10, 2)),
        Column("at", DateTime(timezone=True)),
        Column("plain", JSON),
        Column("tree", JSONB),
        Column("plains", ARRAY(JSON)),
        Column("small", DOMAIN("small_document", DOMAIN("document", JSON))),
    )
    document = {"a": [1]}
    values = {
        "id": "t1",
        "price": Decimal("1.004"),
        "plain": document,
        "tree": document,
        "plains": [document, 3],
        "small": '{"a": [1]}',
    }
    async with opened(driver, address) as stage, stage.transaction() as tx:
        row, created = await tx.insert_once(typed, values, on="id", compare=True)
        assert (created, row["price"], row["tree"]) == (True, Decimal("1.00"), {"a": [1]})
        assert (await tx.insert_once(typed, values, on="id", compare=True)).outcome is InsertOutcome.SAME
        others: dict[str, Any] = {
            "price": Decimal("1.01"),
            "plain": {},
            "tree": {"a": [2]},
            "plains": [3, document],
            "small": "{}",
        }
        for column, value in others.items():
            found = await tx.insert_once(typed, {**values, column: value}, on="id", compare="tell")
            assert found.differing == (column,)


async def test_a_key_that_the_index_has_rounded_is_found(request: pytest.FixtureRequest) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, "CREATE TABLE slots (at timestamptz(0) PRIMARY KEY, name text)")
    moment = datetime.datetime(2026, 5, 1, 12, 0, 0, 400_000, tzinfo=datetime.UTC)
    async with opened("asyncpg", address) as stage, stage.transaction() as tx:
        assert (await tx.insert_once("slots", {"at": moment, "name": "a"}, on="at")).created
        found = await tx.insert_once("slots", {"at": moment, "name": "b"}, on="at")
        assert (found.created, found.row["name"]) == (False, "a")


async def test_a_row_that_cannot_be_read_ends_after_a_few_tries(request: pytest.FixtureRequest) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, TABLES[0])
    look(address, "CREATE FUNCTION hide() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    look(address, "CREATE TRIGGER hidden BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION hide()")
    async with opened("psycopg", address) as stage:
        with refused(SerializationFailed, "neither be inserted nor read", "trigger"):
            async with stage.transaction() as tx:
                await tx.insert_once("orders", {"id": "o1"}, on="id")


@pytest.mark.parametrize("form", ["plain", "table", "mapped"])
@pytest.mark.parametrize("driver", ["sqlite engine", "psycopg engine", "asyncpg engine"])
async def test_a_row_that_the_index_does_not_hold_is_not_kept(
    request: pytest.FixtureRequest, driver: str, form: Any
) -> None:
    """By a default it is not among the rows of the partial index: each call would insert another."""
    async with opened(driver, address_for(request, driver), form) as stage:
        values = stage.named({"id": "o1", "email": "a@b.c"})
        for _ in range(2):
            with refused(TransactionMisused, "does not keep it single"):
                async with stage.transaction() as tx:
                    with refused(TransactionMisused, "orders", "a@b.c", "open"):
                        await tx.insert_once(
                            stage.table("orders"), values, on="email", among=stage.named({"status": "open"})
                        )
        assert stage.outside("SELECT id FROM orders") == []


@pytest.mark.parametrize("driver", ["sqlite", "psycopg"])
async def test_a_key_that_is_stored_as_null_is_not_kept(request: pytest.FixtureRequest, driver: str) -> None:
    """SQLite stores NULL for NaN; on Postgres a trigger does it. NULL is as often in a unique index as one likes."""
    address = address_for(request, driver)
    if driver == "sqlite":
        look(address, "CREATE TABLE measured (at REAL UNIQUE)")
    else:
        look(address, "CREATE TABLE measured (at float8 UNIQUE)")
        look(
            address,
            "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.at := NULL; RETURN NEW; END'",
        )
        look(address, "CREATE TRIGGER forget BEFORE INSERT ON measured FOR EACH ROW EXECUTE FUNCTION forget()")
    async with opened(driver, address) as stage:
        for compare in (False, True):
            with refused(TransactionMisused, "does not keep it single"):
                async with stage.transaction() as tx:
                    with refused(TransactionMisused, "measured", "NULL"):
                        await tx.insert_once("measured", {"at": float("nan")}, on="at", compare=compare)
        assert stage.outside("SELECT count(*) FROM measured") == [(0,)]
    if stage.is_postgres:
        look(address, "DROP TABLE measured")
        look(address, "DROP FUNCTION forget")
