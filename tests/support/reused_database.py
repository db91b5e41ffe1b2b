"""A Postgres database that is made ready once and used by one test after another.

To make a database and migrate it takes ten times as long as to empty its tables, and most tests of a request take less
than that. A test that changes more than rows has the tables made anew for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, LiteralString

import psycopg

from onefold.testing.servers import PrivatePostgres

#: What DROP DATABASE ... WITH (FORCE) does to the sessions in it.
_CUT_OFF: Final[LiteralString] = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""

#: Everything but what migrations wrote. Waits for no transaction for long: one that is still open was leaked by the
#: test. As a replica, so that no foreign key and no trigger has a say.
_EMPTY: Final[LiteralString] = """
SET lock_timeout = '30s';
SET session_replication_role = replica;
DO $$
DECLARE
    found text;
BEGIN
    FOR found IN SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public' LOOP
        EXECUTE 'LOCK TABLE ' || found || ' IN ACCESS EXCLUSIVE MODE';
        IF found NOT IN ('onefold_migration', 'onefold_bucket') THEN
            EXECUTE 'DELETE FROM ' || found;
        END IF;
    END LOOP;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class
    WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace;
END $$
"""

#: Which rows of the catalog there are, and which transaction wrote them; and what migrations wrote.
_SHAPE: Final[LiteralString] = """
SELECT md5(string_agg(found, ' ' ORDER BY found)) FROM (
    SELECT format('class %s %s', oid, xmin) FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT format('column %s.%s %s', attrelid, attnum, pg_attribute.xmin)
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT format('constraint %s %s', oid, xmin) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT format('trigger %s %s', oid, xmin) FROM pg_trigger
    UNION ALL SELECT format('function %s %s', oid, xmin) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT format('setting %s %s', setrole, setconfig) FROM pg_db_role_setting
    UNION ALL SELECT format('row %s', onefold_bucket) FROM onefold_bucket
    UNION ALL SELECT format('row %s', onefold_migration) FROM onefold_migration
) AS rows (found)
"""


class ReusedDatabase:
    """One of a server; `furnish` makes its tables, with onefold's among them. A test that leaves a transaction open
    fails, unless it `may_leave_sessions`, which then are cut off."""

    def __init__(
        self, server: PrivatePostgres, furnish: Callable[[str], object], *, may_leave_sessions: bool = False
    ) -> None:
        self.dsn = server.fresh_database()
        self._between: LiteralString = f"{_CUT_OFF};{_EMPTY}" if may_leave_sessions else _EMPTY
        self._furnish = furnish
        self._shape: str | None = None

    @contextmanager
    def ready(self) -> Iterator[str]:
        """Its DSN, for one test: with its tables, and nothing in them."""
        if self._shape is None:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                connection.execute("SET lock_timeout = '30s'; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
                self._furnish(self.dsn)
                self._shape = self._look(connection)
        try:
            yield self.dsn
        finally:
            former, self._shape = self._shape, None
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                try:
                    connection.execute(self._between)
                    unchanged = self._look(connection) == former
                except psycopg.errors.UndefinedTable:
                    unchanged = False
            self._shape = former if unchanged else None

    @staticmethod
    def _look(connection: psycopg.Connection[tuple[str]]) -> str:
        [(shape,)] = connection.execute(_SHAPE).fetchall()
        return shape
