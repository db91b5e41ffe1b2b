"""Classes that share a table: a row is of the class that it was inserted as."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onefold import InsertOutcome
from onefold.errors import RowDiffers
from tests.natural.stages import Stage, address_for, look, opened, refused


class Base(DeclarativeBase):
    """The application's."""


class Person(Base):
    __tablename__ = "people"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012

    id: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column("type")
    state: Mapped[str] = mapped_column(default="new")


class Manager(Person):
    __mapper_args__ = {"polymorphic_identity": "manager"}  # noqa: RUF012

    budget: Mapped[int | None]


class Engineer(Person):
    __mapper_args__ = {"polymorphic_identity": "engineer"}  # noqa: RUF012


@pytest.fixture(params=["sqlite engine", "psycopg engine", "asyncpg engine"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    address = address_for(request, request.param)
    look(address, "CREATE TABLE people (id text PRIMARY KEY, type text NOT NULL, state text, budget integer)")
    async with opened(request.param, address, "mapped") as stage:
        yield stage
    if stage.is_postgres:
        look(address, "DROP TABLE people")


async def test_a_row_is_of_the_class_that_it_is_inserted_as(stage: Stage) -> None:
    async with stage.transaction() as tx:
        manager, created = await tx.insert_once(Manager, {"id": "m1", "budget": 5}, on="id")
        assert (type(manager), manager.kind, manager.budget, created) == (Manager, "manager", 5, True)
        person, created = await tx.insert_once(Person, {"id": "p1"}, on="id")
        assert (type(person), person.kind, created) == (Person, "person", True)
    async with stage.transaction() as tx:
        again = await tx.insert_once(Manager, {"id": "m1", "budget": 5}, on="id", compare=True)
        assert (again.outcome, again.row.budget) == (InsertOutcome.SAME, 5)
        moved = await tx.transition(Manager, where={"id": "m1"}, state="state", come_from="new", to="old")
        assert moved.moved
        assert not await tx.transition(Engineer, where={"id": "m1"}, state="state", come_from="old", to="gone")
    assert stage.outside("SELECT id, type, state FROM people ORDER BY id") == [
        ("m1", "manager", "old"),
        ("p1", "person", "new"),
    ]


@pytest.mark.parametrize("compare", [False, True, "tell"])
async def test_a_key_that_another_class_has_is_taken(stage: Stage, compare: Any) -> None:
    """It is no Engineer, and will not become one: a retry would find the same."""
    async with stage.transaction() as tx:
        await tx.insert_once(Manager, {"id": "m1"}, on="id")
    with refused(RowDiffers, "people", "id='m1'", "kind") as caught:
        async with stage.transaction() as tx:
            await tx.insert_once(Engineer, {"id": "m1", "state": "new"}, on="id", compare=compare)
    assert caught.value.columns == ("kind",)
    assert stage.outside("SELECT id, type FROM people") == [("m1", "manager")]
