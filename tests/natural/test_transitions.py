"""A row moves from one state to the next once, and where it does not, what was found is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onefold import TransitionOutcome
from onefold.errors import ProgrammerError, SerializationFailed, StatementRefused, TransactionMisused
from tests.natural.stages import TABLES, WAYS, Stage, address_for, look, opened, refused


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}".replace(" ", "-"))
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    driver, form = request.param
    async with opened(driver, address_for(request, driver), form) as stage:
        yield stage


def move(stage: Stage, tx: Any, id_: str = "o1", **how: Any) -> Any:
    asked = {"come_from": "paid", "to": "shipped", **how}
    return tx.transition(stage.table("orders"), where={stage.name("id"): id_}, state=stage.name("status"), **asked)


async def test_each_outcome_says_what_was_found(stage: Stage) -> None:
    stage.outside("INSERT INTO orders (id, status, version) VALUES ('o1', 'paid', 3), ('o2', 'new', 1)")
    async with stage.transaction() as tx:
        stale = await move(stage, tx, version="version", expected_version=2)
        assert (stale.outcome, stale.state, stale.version, bool(stale)) == (TransitionOutcome.STALE, "paid", 3, False)
        also = {"note": "parcel 7"}
        moved = await move(stage, tx, version="version", expected_version=3, also=also)
        assert (moved.outcome, moved.state, moved.version) == (TransitionOutcome.MOVED, "shipped", 4)
        assert (bool(moved), moved.moved, moved.arrived) == (True, True, True)
        assert [stage.read(moved.row, column) for column in ("id", "status", "note")] == ["o1", "shipped", "parcel 7"]
        again = await move(stage, tx, version="version", also={"note": "another"})
        assert (again.outcome, again.state, again.version) == (TransitionOutcome.ALREADY_THERE, "shipped", 4)
        assert (bool(again), again.arrived, stage.read(again.row, "note")) == (False, True, "parcel 7")
        early = await move(stage, tx, "o2")
        assert (early.outcome, early.state, early.version) == (TransitionOutcome.NOT_ALLOWED, "new", None)
        assert (bool(early), early.arrived) == (False, False)
        missing = await move(stage, tx, "o9")
        assert (missing.outcome, missing.state, missing.row) == (TransitionOutcome.MISSING, None, None)
        several = await move(stage, tx, "o2", come_from=["new", "paid"], to="cancelled")
        assert (several.outcome, several.state) == (TransitionOutcome.MOVED, "cancelled")
    expected = [("o1", "shipped", 4, "parcel 7"), ("o2", "cancelled", 1, "none")]
    assert stage.outside("SELECT id, status, version, note FROM orders ORDER BY id") == expected


async def test_what_stands_for_several_rows_is_refused_and_nothing_is_kept(stage: Stage) -> None:
    stage.outside("INSERT INTO orders (id, tenant, status) VALUES ('o1', 'a', 'paid'), ('o2', 'a', 'paid')")
    with refused(TransactionMisused, "2 rows of orders"):
        async with stage.transaction() as tx:
            with refused(TransactionMisused, "2 rows of orders"):
                await tx.transition(
                    stage.table("orders"), where={"tenant": "a"}, state=stage.name("status"), come_from="paid", to="x"
                )
            # Swallowed: it must not be committed all the same.
    assert stage.outside("SELECT status FROM orders") == [("paid",), ("paid",)]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"to": None}, "NULL"),
        ({"come_from": None}, "NULL"),
        ({"come_from": []}, "states"),
        ({"come_from": ["paid", "shipped"]}, "among come_from"),
        ({"expected_version": 3}, "needs version="),
        ({"version": "status"}, "twice"),
        ({"also": {"status": "x"}}, "twice"),
        ({"where": {}}, "where"),
        ({"where": {"id": None}}, "None"),
        ({"where": {"id": "o1", "status": "paid"}}, "come_from"),
        ({"where": {"id or 1=1": "o1"}}, "id or 1=1"),
        ({"state": 'status" = 1 --'}, "column"),
        ({"state": ["status"]}, "state"),
        ({"state": None}, "state"),
        ({"version": ["version"]}, "version"),
        ({"also": {"note": 1, "x;": 2}}, "x;"),
    ],
)
async def test_what_cannot_be_asked_is_refused_where_it_is_written(
    request: pytest.FixtureRequest, how: dict[str, Any], words: str
) -> None:
    asked = {"where": {"id": "o1"}, "state": "status", "come_from": "paid", "to": "shipped", **how}
    async with opened("sqlite", address_for(request, "sqlite")) as stage, stage.transaction() as tx:
        with refused(ProgrammerError, words):
            tx.transition("orders", **asked)


async def test_a_trigger_that_keeps_a_row_where_it_is_ends_the_tries(request: pytest.FixtureRequest) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, TABLES[0])
    look(address, "INSERT INTO orders (id, status) VALUES ('o1', 'paid')")
    look(address, "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    look(address, "CREATE TRIGGER kept BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION keep()")
    async with opened("asyncpg", address) as stage:
        with refused(SerializationFailed, "was not moved", "trigger"):
            async with stage.transaction() as tx:
                await move(stage, tx)


@pytest.mark.parametrize(
    ("driver", "form"), [("psycopg", "plain"), ("asyncpg engine", "table"), ("asyncpg engine", "mapped")]
)
async def test_a_trigger_that_leads_a_row_elsewhere_is_told(
    request: pytest.FixtureRequest, driver: str, form: Any
) -> None:
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, TABLES[0])
    look(address, "INSERT INTO orders (id, status) VALUES ('o1', 'paid')")
    look(
        address, "CREATE FUNCTION lead() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.note := NEW.status; NEW.status "
        ":= OLD.status; RETURN NEW; END'",
    )  # fmt: skip
    look(address, "CREATE TRIGGER led BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION lead()")
    async with opened(driver, address, form) as stage:
        with refused(TransactionMisused, "trigger"):
            async with stage.transaction() as tx:
                with refused(TransactionMisused, "'paid'", "not into 'shipped'"):
                    await move(stage, tx)
        assert stage.outside("SELECT status, note FROM orders") == [("paid", "none")]


@pytest.mark.parametrize("form", ["plain", "table", "mapped"])
@pytest.mark.parametrize("driver", ["sqlite engine", "psycopg engine"])
async def test_a_state_that_is_the_same_for_the_database_is_not_moved_again(
    request: pytest.FixtureRequest, driver: str, form: Any
) -> None:
    """It ignores case, or blanks at the end; Python does not."""
    address = str(request.getfixturevalue("postgres_dsn" if "psycopg" in driver else "sqlite_path"))
    kind, to = ("char(8)", "paid ") if "psycopg" in driver else ("text COLLATE NOCASE", "PAID")
    look(address, TABLES[0].replace("status text", f"status {kind}"))
    look(address, "INSERT INTO orders (id, status) VALUES ('o1', 'paid')")
    async with opened(driver, address, form) as stage:
        for _ in range(2):
            async with stage.transaction() as tx:
                moved = await tx.transition(
                    stage.table("orders"),
                    where=stage.named({"id": "o1"}),
                    state=stage.name("status"),
                    come_from="paid",
                    to=to,
                    version="version",
                )
                assert moved.outcome is TransitionOutcome.ALREADY_THERE
        assert stage.outside("SELECT version FROM orders") == [(0,)]


@pytest.mark.parametrize("driver", ["sqlite", "psycopg"])
async def test_a_column_that_is_not_there_is_named(request: pytest.FixtureRequest, driver: str) -> None:
    """SQLite would take a quoted name for a text: `where` would be true for every row, or for none."""
    async with opened(driver, address_for(request, driver)) as stage:
        look(stage.address, "INSERT INTO orders (id, status) VALUES ('o1', 'paid')")
        for where in ({"idd": "o1"}, {"id": "o1", "shop": "shop"}):
            with refused(ProgrammerError, "not there"):
                async with stage.transaction() as tx:
                    await tx.transition("orders", where=where, state="status", come_from="paid", to="shipped")
        assert stage.outside("SELECT status FROM orders") == [("paid",)]


@pytest.mark.parametrize("driver", ["sqlite", "psycopg", "sqlite engine", "psycopg engine"])
@pytest.mark.parametrize("version", ["NULL", "'2026-05-01'"])
async def test_a_version_that_does_not_count_is_refused(
    request: pytest.FixtureRequest, driver: str, version: str
) -> None:
    """SQLite makes 2027 of a date and one more, and NULL of NULL: what is named as a version would tell nothing."""
    address = address_for(request, driver)
    look(address, "CREATE TABLE dated (id text PRIMARY KEY, status text, version text)")
    look(address, f"INSERT INTO dated VALUES ('d1', 'paid', {version})")
    async with opened(driver, address) as stage:
        for _ in range(2):
            with pytest.raises((TransactionMisused, StatementRefused), match=r"version|operator does not exist"):
                async with stage.transaction() as tx:
                    await tx.transition(
                        "dated", where={"id": "d1"}, state="status", come_from="paid", to="shipped", version="version"
                    )
        kept = None if version == "NULL" else "2026-05-01"
        assert stage.outside("SELECT status, version FROM dated") == [("paid", kept)]
    look(address, "DROP TABLE dated")


async def test_a_version_of_null_is_refused_where_it_could_count(request: pytest.FixtureRequest) -> None:
    for driver in ("sqlite", "psycopg", "asyncpg"):
        address = address_for(request, driver)
        look(address, "CREATE TABLE counted (id text PRIMARY KEY, status text, version bigint)")
        look(address, "INSERT INTO counted VALUES ('c1', 'paid', NULL), ('c2', 'paid', 1)")
        async with opened(driver, address) as stage:
            with refused(TransactionMisused, "version", "NULL"):
                async with stage.transaction() as tx:
                    await tx.transition(
                        "counted", where={"id": "c1"}, state="status", come_from="paid", to="x", version="version"
                    )
            async with stage.transaction() as tx:
                moved = await tx.transition(
                    "counted", where={"id": "c2"}, state="status", come_from="paid", to="x", version="version"
                )
                assert moved.version == 2
            assert stage.outside("SELECT status FROM counted ORDER BY id") == [("paid",), ("x",)]
        look(address, "DROP TABLE counted")
