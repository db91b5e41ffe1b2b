"""Which release made a database's tables: only where onefold 0.1 did, it has left records, or may have processes.

`onefold_migration` has a time for each version, and what is applied together has one time. 0.1 brought the versions up
to 5. Where 0.1 was first, version 6 came later; where 0.2 was first, it has the time of the others. Whatever cannot be
told is taken for 0.1's: to look for its records in vain costs a little, not to look for them runs a request twice.

In doubt are tables that were migrated one version at a time, and SQLite files up to which times had seconds only. On
Postgres also connections whose search path is not that of a new session: the next one may look into other tables.
"""

from __future__ import annotations

from typing import Final

from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified
from onefold.errors import StatementRefused

#: The first version that 0.1 did not have. All before it are there, too.
_FIRST_OF_0_2: Final = 6

_APPLIED_TOGETHER: Final = {
    "postgres": qualified(f"""
        SELECT count(*) = {_FIRST_OF_0_2} AND min(applied_at) = max(applied_at)
               AND current_setting('search_path') = (SELECT reset_val FROM pg_settings WHERE name = 'search_path')
        FROM onefold_migration WHERE version <= {_FIRST_OF_0_2}
    """),
    "sqlite": f"""
        SELECT count(*) = {_FIRST_OF_0_2} AND min(applied_at) = max(applied_at) AND instr(min(applied_at), '.') > 0
        FROM onefold_migration WHERE version <= {_FIRST_OF_0_2}
    """,
}


async def may_be_of_0_1(dialect: str) -> bool:
    """False where onefold 0.1 cannot have had this database. Raises what a claim would: the database is away, or not
    migrated."""
    try:
        rows = await with_connection(lambda: fetch_rows(Statement(_APPLIED_TOGETHER[dialect])))
    except StatementRefused:  # this role may not read the table
        return True
    [(together,)] = rows
    return not together
