"""What is kept of calls for those that look alike: never more than a bound, never another statement than was checked,
and no types of a table that has others now."""

from __future__ import annotations

from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, func

from onefold import InsertOutcome
from onefold._natural import writes
from onefold._natural.plans import PLANS_MAX
from onefold.errors import OnefoldError, ProgrammerError
from tests.natural.stages import Stage, address_for, look, opened, refused


async def price(stage: Stage, value: str, schema: str | None = None) -> InsertOutcome:
    """What is said of a price under a key that is taken, or free."""
    async with stage.transaction() as tx:
        if schema is not None:
            done = tx.connection.execute(f"SET LOCAL search_path = {schema}")
            _ = await done if stage.asynchronous else done
        found = await tx.insert_once("prices", {"id": "p1", "price": Decimal(value)}, on="id", compare="tell")
    outcome: InsertOutcome = found.outcome
    return outcome


class Name(str, Enum):  # noqa: UP042 - formatted as `Name.ID`, where a StrEnum is as its value
    """As an application may name its tables and columns."""

    ORDERS = "orders"
    ID = "id"
    STATUS = "status"


@pytest.mark.parametrize("driver", ["sqlite", "psycopg"])
async def test_a_name_may_be_a_member_of_an_enumeration(request: pytest.FixtureRequest, driver: str) -> None:
    """It equals the name as a text, and so what is kept of its call is for that as well."""
    async with opened(driver, address_for(request, driver)) as stage, stage.transaction() as tx:
        assert tx.insert_once(Name.ORDERS, {Name.ID: "o1", Name.STATUS: "new"}, on=Name.ID).created
        assert not tx.insert_once("orders", {"id": "o1", "status": "new"}, on="id", compare=True).created
        for table, key, state, came, to in (
            (Name.ORDERS, Name.ID, Name.STATUS, "new", "paid"), ("orders", "id", "status", "paid", "sent"),
        ):  # fmt: skip
            assert tx.transition(table, where={key: "o1"}, state=state, come_from=came, to=to).moved
        assert tx.lock_row(Name.ORDERS, where={Name.ID: "o1"})["status"] == "sent"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg-async", "psycopg engine"])
async def test_a_column_that_was_altered_is_compared_as_it_is_now(request: pytest.FixtureRequest, driver: str) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, "CREATE TABLE prices (id text PRIMARY KEY, price numeric(10,2))")
    async with opened(driver, address) as stage:
        said = [await price(stage, value) for value in ("5.004", "5.001")]
        look(address, "ALTER TABLE prices ALTER price TYPE numeric(10,4)")
        said += [await price(stage, value) for value in ("5.001", "5.0000")]
    assert said == [InsertOutcome.CREATED, InsertOutcome.SAME, InsertOutcome.DIFFERENT, InsertOutcome.SAME]


async def test_the_same_name_may_stand_for_tables_with_other_types(request: pytest.FixtureRequest) -> None:
    """By the search_path of a transaction, and in another database."""
    address, other = str(request.getfixturevalue("postgres_dsn")), address_for(request, "postgres")
    for schema, kind in (("one", "numeric(10,2)"), ("two", "numeric(10,0)")):
        look(address, f"CREATE SCHEMA {schema}")
        look(address, f"CREATE TABLE {schema}.prices (id text PRIMARY KEY, price {kind})")
        look(address, f"INSERT INTO {schema}.prices VALUES ('p1', 1)")
    look(other, "CREATE TABLE prices (id text PRIMARY KEY, price numeric(10,1))")
    look(other, "INSERT INTO prices VALUES ('p1', 1)")
    async with opened("psycopg", address) as stage, opened("psycopg", other) as elsewhere:
        same = [await price(stage, "1.004", "one"), await price(stage, "1.4", "two"), await price(elsewhere, "1.04")]
        again = [await price(stage, "1.4", "one"), await price(stage, "1.6", "two"), await price(elsewhere, "1.4")]
    look(other, "DROP TABLE prices")
    assert same == [InsertOutcome.SAME] * 3
    assert again == [InsertOutcome.DIFFERENT] * 3


async def test_a_type_that_was_renamed_is_found_out_again(request: pytest.FixtureRequest) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, "CREATE TYPE mood AS ENUM ('fine', 'bad')")
    look(address, "CREATE TABLE moods (id text PRIMARY KEY, mood mood)")

    async def say(stage: Stage) -> InsertOutcome:
        async with stage.transaction() as tx:
            made = await tx.insert_once("moods", {"id": "m1", "mood": "fine"}, on="id", compare=True)
        outcome: InsertOutcome = made.outcome
        return outcome

    async with opened("psycopg", address) as stage:
        assert [await say(stage), await say(stage)] == [InsertOutcome.CREATED, InsertOutcome.SAME]
        look(address, "ALTER TYPE mood RENAME TO feeling")
        with pytest.raises(OnefoldError):  # the name stands in the statement
            await say(stage)
        assert await say(stage) is InsertOutcome.SAME


@pytest.mark.parametrize("driver", ["sqlite", "psycopg"])
async def test_what_equals_another_in_python_is_a_condition_of_its_own(
    request: pytest.FixtureRequest, driver: str
) -> None:
    """`1` and `True` are one key of a dict. In SQL they are two conditions, and on Postgres of two types."""
    address = address_for(request, driver)
    look(address, "CREATE TABLE flags (id text, is_on boolean, kind integer)")
    look(address, f"CREATE UNIQUE INDEX on_flags ON flags (id) WHERE is_on = {'1' if driver == 'sqlite' else 'true'}")
    look(address, "CREATE UNIQUE INDEX kind_flags ON flags (id) WHERE kind = 1")
    values = {"id": "f1", "is_on": True, "kind": 1}
    async with opened(driver, address) as stage:
        async with stage.transaction() as tx:
            for among in ({"is_on": True}, {"kind": 1}, {"is_on": True}):
                await tx.insert_once("flags", values, on="id", among=among)
            for on in ("id", ["id"], ("id",)):
                for compare in (True, ["kind"], "tell"):
                    found = await tx.insert_once("flags", values, on=on, compare=compare, among={"kind": 1})
                    assert found.outcome is InsertOutcome.SAME
            with refused(ProgrammerError, "compare=1"):
                tx.insert_once("flags", values, on="id", compare=1)
        if stage.is_postgres:
            with pytest.raises(OnefoldError, match="integer = boolean"):
                async with stage.transaction() as tx:
                    await tx.insert_once("flags", values, on="id", among={"kind": True})
            look(address, "DROP TABLE flags")


async def test_what_is_kept_is_bounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "TABLES_MAX", 3)
    address = address_for(request, "sqlite")
    columns = [f"c{number}" for number in range(PLANS_MAX + 10)]
    look(address, f"CREATE TABLE wide (id text PRIMARY KEY, {', '.join(columns)})")
    for number in range(5):
        look(address, f"CREATE TABLE t{number} (id text PRIMARY KEY)")
    async with opened("sqlite", address) as stage, stage.transaction() as tx:
        for number, column in enumerate(columns):
            assert (await tx.insert_once("wide", {"id": number, column: number}, on="id")).created
        tables = stage.once._natural().tables
        assert 0 < len(tables["wide"].plans) <= PLANS_MAX
        for number in range(5):
            assert (await tx.insert_once(f"t{number}", {"id": "x"}, on="id")).created
        assert 0 < len(tables) <= 3
        with refused(ProgrammerError, "table"):
            tx.insert_once("t0; --", {"id": "x"}, on="id")
        assert "t0; --" not in tables
    assert stage.outside("SELECT count(*) FROM wide") == [(len(columns),)]


async def test_each_call_has_its_own_values(request: pytest.FixtureRequest) -> None:
    """Also what is refused for its values, after a call of the same shape was not."""
    async with opened("sqlite", address_for(request, "sqlite")) as stage, stage.transaction() as tx:
        given = {"id": "o1", "status": "new"}
        assert (await tx.insert_once("orders", given, on="id")).created
        given["id"] = "o2"
        assert (await tx.insert_once("orders", given, on="id")).row["id"] == "o2"
        with refused(ProgrammerError, "None for 'id'"):
            tx.insert_once("orders", {"id": None, "status": "new"}, on="id")
        how: dict[str, Any] = {"state": "status", "come_from": "new", "to": "paid"}
        assert (await tx.transition("orders", where={"id": "o1"}, **how)).moved
        with refused(ProgrammerError, "None for 'id'"):
            tx.transition("orders", where={"id": None}, **how)
        with refused(ProgrammerError, "among come_from"):
            tx.transition("orders", where={"id": "o2"}, **{**how, "to": "new"})
        assert (await tx.transition("orders", where={"id": "o2"}, **how)).moved


@pytest.mark.parametrize("driver", ["sqlite engine", "psycopg engine", "asyncpg engine"])
async def test_expressions_and_columns_that_come_later_are_written_by_sqlalchemy(
    request: pytest.FixtureRequest, driver: str
) -> None:
    address = address_for(request, driver)
    look(address, "CREATE TABLE words (id text PRIMARY KEY, word text, more text, uses integer)")
    words = Table("words", MetaData(), Column("id", String, primary_key=True), Column("word", String))
    async with opened(driver, address) as stage, stage.transaction() as tx:
        for number, word in (("w1", "plain"), ("w2", func.upper("loud")), ("w3", "plain"), ("w4", func.lower("LOW"))):
            await tx.insert_once(words, {"id": number, "word": word}, on="id")
        with refused(ProgrammerError, "has no column 'more'"):
            tx.insert_once(words, {"id": "w5", "more": "x"}, on="id")
        words.append_column(Column("more", String))
        words.append_column(Column("uses", Integer))
        row, _ = await tx.insert_once(words, {"id": "w5", "more": "x", "uses": 1}, on="id")
        assert (row["more"], row["uses"]) == ("x", 1)
        moved = await tx.transition(
            words, where={"id": "w1"}, state="word", come_from="plain", to="moved", also={"more": func.upper("y")}
        )
        assert (moved.moved, moved.row["more"]) == (True, "Y")
    written = [("w1", "moved"), ("w2", "LOUD"), ("w3", "plain"), ("w4", "low"), ("w5", None)]
    assert stage.outside("SELECT id, word FROM words ORDER BY id") == written
    if stage.is_postgres:
        look(address, "DROP TABLE words")
