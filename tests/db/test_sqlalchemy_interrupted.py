"""SQLAlchemy: what interrupts a statement of ours, a time limit of the application's for example, leaves no connection
in its pool that commits in another way than it did."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text

from onefold._kernel.effects import Boundary, Statement
from onefold.db.sqlalchemy import SqlalchemyDatabase
from onefold.errors import ConfigurationError

LOOK = Statement("SELECT 1")


class OutOfTime(Exception):
    """As Celery has it, from a signal: at any line."""


@pytest.fixture(params=["psycopg", "psycopg2"])
def url(request: pytest.FixtureRequest, postgres_dsn: str) -> str:
    return f"postgresql+{request.param}://{postgres_dsn.partition('://')[2]}"


class Interruption:
    """Of the statement that is executed next, once it is armed."""

    armed = False

    def strike(self) -> None:
        if self.armed:
            self.armed = False
            raise OutOfTime


@pytest.fixture
def interruption() -> Interruption:
    return Interruption()


@pytest.fixture
def engine(url: str, interruption: Interruption) -> Iterator[Engine]:
    base: Any = import_module("psycopg2.extensions").cursor if "psycopg2" in url else psycopg.Cursor

    def execute(cursor: Any, *args: Any, **kwargs: Any) -> Any:
        result = base.execute(cursor, *args, **kwargs)
        interruption.strike()
        return result

    connect_args = {"cursor_factory": type("InterruptedCursor", (base,), {"execute": execute})}
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=1, connect_args=connect_args)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE thing (id int)"))
    yield engine
    engine.dispose()


def count_after_a_rollback(engine: Engine) -> object:
    """How many rows of a transaction of the application's are kept that it rolls back."""
    with engine.connect() as connection:
        connection.execute(text("INSERT INTO thing VALUES (1)"))
        connection.rollback()
        return connection.scalar(text("SELECT count(*) FROM thing"))


def commits_each(engine: Engine) -> object:
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        return driver.autocommit


def test_interrupted_while_it_is_taken_a_connection_is_not_left_to_commit_each_statement(
    engine: Engine, interruption: Interruption
) -> None:
    database = SqlalchemyDatabase(engine)
    interruption.armed = True
    with pytest.raises(OutOfTime):
        database.acquire()
    assert count_after_a_rollback(engine) == 0


def test_interrupted_in_a_statement_a_connection_does_not_go_back_as_one_that_commits_each(
    engine: Engine, interruption: Interruption
) -> None:
    connection = SqlalchemyDatabase(engine).acquire()
    interruption.armed = True
    with pytest.raises(OutOfTime):
        connection.fetch(LOOK)
    connection.release()
    assert count_after_a_rollback(engine) == 0


def test_interrupted_on_its_way_back_a_connection_still_commits_each_statement_of_its_application(url: str) -> None:
    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=1, isolation_level="AUTOCOMMIT")
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((Boundary.BEGIN, LOOK))

    @event.listens_for(engine, "rollback", once=True)
    def rolled_back(_: Connection) -> None:
        raise OutOfTime

    with pytest.raises(OutOfTime):
        connection.release()
    assert commits_each(engine)
    engine.dispose()


def test_a_connection_that_is_refused_still_commits_each_statement_of_its_application(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigurationError("there are no tables")

    engine = create_engine(url, pool_size=1, max_overflow=0, pool_timeout=1, isolation_level="AUTOCOMMIT")
    monkeypatch.setattr("onefold.db._postgres_session.Place.read", refuse)
    with pytest.raises(ConfigurationError):
        SqlalchemyDatabase(engine).acquire()
    assert commits_each(engine)
    engine.dispose()
