"""Whether onefold 0.1 may have used a database, found out by which release made its tables.

Only where 0.1 made them can it have left records, or still run. `onefold_migration` has a time for each version, and
versions that were applied together have the same one. 0.1 knew versions 1 to 5: where it came first, version 6 has a
later time; where 0.2 came first, version 6 has the time of the others. In doubt the answer is yes: to look for records
of 0.1 in vain costs a little, not to look for them runs a request twice.

In doubt are tables that were migrated one version at a time, and SQLite files migrated before times had fractions of a
second. On Postgres, so are connections whose search path is not that of a new session: the next one may lead to other
tables.
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
    """False where onefold 0.1 cannot have used this database. Raises what a claim would: the database is away, or not
    migrated."""
    try:
        rows = await with_connection(lambda: fetch_rows(Statement(_APPLIED_TOGETHER[dialect])))
    except StatementRefused:  # this role may not read the table
        return True
    [(together,)] = rows
    return not together
