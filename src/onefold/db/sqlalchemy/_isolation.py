"""The isolation of an engine's connection while it is out: as the application chose it, or as one transaction needs it.

Set on the driver's connection, which sends it with its next BEGIN. (Connection.execution_options would do the same, but
makes SQLAlchemy pin the level that it takes for the default, also for the application's own transactions to come.)
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from onefold.errors import ConfigurationError

_FROM_WEAKEST = ("READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


def check_chosen_level(connection: Connection, level: str) -> None:
    """Raises ConfigurationError where the application chose a level for a session, and the transaction that the session
    joins has less than that. It has begun, so its level cannot be changed any more."""
    if level == connection.get_execution_options().get("isolation_level"):  # the engine's, which the route may change
        return
    chosen, has = (name.replace("_", " ").upper() for name in (level, connection.get_isolation_level()))
    if chosen not in _FROM_WEAKEST or _FROM_WEAKEST.index(has) < _FROM_WEAKEST.index(chosen):
        raise ConfigurationError(
            f"session_factory makes sessions with isolation_level={level!r}, but the transaction that this one joins "
            f"has begun with {has}. Let onefold begin it as you want it: Onefold(..., isolation=...) or "
            "@once.idempotent(isolation=...), or give onefold the engine that has the level, and bind session_factory "
            "to the same one"
        )


class ConnectionIsolation:
    """Knows how the connection came, and what it has been set to since."""

    __slots__ = ("_autocommit", "_came", "_current", "_dialect", "_driver", "_session")

    def __init__(self, connection: Connection) -> None:
        self._dialect: Any = connection.dialect
        driver: Any = connection.connection.dbapi_connection
        self._driver = driver
        # SQLAlchemy's adapter of psycopg for asyncio can set the level, but not return it.
        there = driver if hasattr(driver, "isolation_level") else connection.connection.driver_connection
        if not (hasattr(there, "isolation_level") and hasattr(driver, "set_isolation_level")):
            raise ConfigurationError(
                f"onefold cannot read the isolation level of the engine's driver {connection.dialect.driver}; use "
                "postgresql+psycopg:// or postgresql+asyncpg://"
            )
        self._came: Any = getattr(there, "isolation_level", None)
        self._autocommit: bool = driver.autocommit
        self._session: Any = connection.connection.driver_connection
        self._current: str | None = None
        if self._autocommit:  # no level: transactions have the one of the server
            driver.set_isolation_level(None)
            driver.autocommit = False

    def use(self, level: str | None) -> None:
        """For the transactions from now on. None: as the application chose it."""
        if level == self._current:
            return
        self._current = level
        if level is not None:
            self._dialect.set_isolation_level(self._driver, level)
        else:
            self._driver.set_isolation_level(None if self._autocommit else self._came)

    def commit_each(self) -> bool:
        """Let statements commit by themselves: for a single one, BEGIN and COMMIT are two more round trips. False: a
        listener of the application's (`checkout`) has begun something, which is left as it is."""
        if self._is_idle:
            self._driver.autocommit = True
            return True
        return False

    def commit_together(self) -> None:
        """No longer."""
        self._driver.autocommit = False

    @property
    def _is_idle(self) -> bool:
        session = self._session
        if hasattr(session, "is_in_transaction"):
            return not session.is_in_transaction()
        return bool(session.info.transaction_status == 0)  # IDLE, for psycopg and for psycopg2

    def restore(self) -> None:
        """The connection goes back as it came."""
        if self._autocommit or self._current is not None:
            self._driver.set_isolation_level(self._came)
            self._driver.autocommit = self._autocommit
