"""What statement sets share: statements are written in the words of Postgres, and those of SQLite follow from them."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Final

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified

#: SQLite's own clock, in milliseconds since 1970.
SQLITE_NOW_MS: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

#: Postgres: how long a statement may take, and wait for a lock, in one text.
POSTGRES_LIMITS: Final = "current_setting('statement_timeout') || ' ' || current_setting('lock_timeout')"

#: Postgres: the role and the limits that a transaction begins with are kept in it, for our own statements: its handler
#: may set others (see `as_ourselves` in `db/_postgres_session.py`). A condition that never holds, for behind WHERE.
POSTGRES_NOTE_ROLE: Final = f"""(set_config('onefold.role', current_setting('role'), true) IS NULL
    OR set_config('onefold.limits', {POSTGRES_LIMITS}, true) IS NULL)"""

#: Postgres: from now on the transaction lasts as long as the lease in the value $1, and so does a pause in it, whatever
#: the server, the database or the role have set. A stopped or half-open peer would otherwise hold its locks for ever.
#: Setting transaction_timeout (17 and later) inside a transaction does not wind up a timer that runs already: 0 stops
#: it first. A condition, to stand behind WHERE, that never holds: no row is returned, because none would be read.
POSTGRES_LEASE: Final = f"""(
    {POSTGRES_NOTE_ROLE}
    OR set_config('idle_in_transaction_session_timeout', $1::text, true) IS NULL
    OR CASE WHEN current_setting('transaction_timeout', true) IS NULL THEN false
            WHEN set_config('transaction_timeout', '0', true) IS NULL THEN false
            ELSE set_config('transaction_timeout', $1::text, true) IS NULL END)"""

#: What a transaction without a lease begins with, where a handler works in it.
POSTGRES_OPENING: Final = Statement(qualified(f"SELECT WHERE {POSTGRES_NOTE_ROLE}"))

#: Postgres: stands in front of COMMIT. What either opening has set dies with its transaction, and in one that was
#: begun instead nothing is there: then the function is given a count of no buckets, which it alone refuses in its own
#: way (SQLSTATE 2201G, `TransactionEnded`). An aborted transaction, which would answer COMMIT with a silent ROLLBACK,
#: refuses every statement. It writes nothing: a transaction may be read-only.
POSTGRES_PROOF: Final = Statement(
    qualified("""
SELECT WHERE width_bucket(0, 0, 1, CASE WHEN coalesce(current_setting('onefold.role', true), '') = '' THEN 0
                                        ELSE 1 END) IS NULL
""")
)

_LEASE: Final = qualified(f"SELECT WHERE {POSTGRES_LEASE}")

_VALUE: Final = re.compile(r"\$(\d+)::\w+")
_MOMENT: Final = re.compile(r"\b([a-z_]+_at)\b")


def sqlite_values(sql: str) -> str:
    """Values as SQLite writes them: ?1 for $1::text."""
    return _VALUE.sub(r"?\1", sql)


def sqlite_text(sql: str) -> str:
    """The statement as SQLite writes it: its values, and moments as milliseconds since 1970 (`seen_at_ms`)."""
    return _MOMENT.sub(r"\1_ms", sqlite_values(sql))


@lru_cache(maxsize=256)
def postgres_span(seconds: float) -> str:
    """As settings and intervals write it."""
    return f"{milliseconds(seconds)}ms"


def postgres_lease(lease_s: float) -> Statement:
    """Bounds the transaction it stands in."""
    return Statement(_LEASE, (postgres_span(lease_s),))


def begin_in_json(text: str) -> str:
    """How a text stands in JSON, up to the first quotation mark in it. So an index of Postgres has an id of headers,
    where what is found is to be compared once more."""
    return json.dumps(text)[1:-1].partition('"')[0]
