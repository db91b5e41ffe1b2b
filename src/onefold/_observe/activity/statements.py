"""What the activity history asks of a database: one set of texts per dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from onefold._kernel.dialects import SQLITE_NOW_MS
from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified


class Count(NamedTuple):
    """What a process has counted of one series in one span so far."""

    span_s: int
    since_s: int
    instrument: str
    labels: str
    """Their values, as a JSON array."""
    amount: int


_KEY: Final = "span_s, since_s, instrument, labels, process"

#: Amounts only grow. So two writes of one process may come in any order, and one whose answer was lost again.
_POSTGRES_WRITE: Final = qualified(f"""
INSERT INTO onefold_activity AS kept ({_KEY}, amount)
SELECT span_s, since_s, instrument, labels, $1::text, amount
FROM json_to_recordset($2::text::json)
    AS counted (span_s integer, since_s bigint, instrument text, labels text, amount bigint)
ON CONFLICT ({_KEY}) DO UPDATE SET amount = greatest(kept.amount, excluded.amount)
""")

_SQLITE_WRITE: Final = f"""
INSERT INTO onefold_activity ({_KEY}, amount)
SELECT json_extract(value, '$.span_s'), json_extract(value, '$.since_s'), json_extract(value, '$.instrument'),
       json_extract(value, '$.labels'), ?1, json_extract(value, '$.amount')
FROM json_each(?2) WHERE true
ON CONFLICT ({_KEY}) DO UPDATE SET amount = max(amount, excluded.amount)
"""

#: By the clock of the database: a process whose clock is ahead does not delete what the others have counted.
_POSTGRES_FORGET: Final = qualified(f"""
WITH past AS MATERIALIZED (
    SELECT {_KEY} FROM onefold_activity
    WHERE span_s = $1::integer AND since_s < (extract(epoch FROM now())::bigint - $2::bigint)
    ORDER BY since_s LIMIT $3::integer FOR UPDATE SKIP LOCKED)
DELETE FROM onefold_activity AS kept USING past
WHERE {" AND ".join(f"kept.{name} = past.{name}" for name in _KEY.split(", "))}
""")

_SQLITE_FORGET: Final = f"""
DELETE FROM onefold_activity WHERE ({_KEY}) IN (
    SELECT {_KEY} FROM onefold_activity
    WHERE span_s = ?1 AND since_s < {SQLITE_NOW_MS} / 1000 - ?2 ORDER BY since_s LIMIT ?3)
"""

_POSTGRES_READ: Final = qualified("""
SELECT since_s, instrument, labels, sum(amount)::bigint, max(amount) FROM onefold_activity
WHERE span_s = $1::integer AND since_s >= $2::bigint AND since_s < $3::bigint
GROUP BY since_s, instrument, labels
""")

_SQLITE_READ: Final = """
SELECT since_s, instrument, labels, sum(amount), max(amount) FROM onefold_activity
WHERE span_s = ?1 AND since_s >= ?2 AND since_s < ?3 GROUP BY since_s, instrument, labels
"""

_POSTGRES_LATEST: Final = qualified(
    "SELECT since_s FROM onefold_activity WHERE span_s = $1::integer ORDER BY since_s DESC LIMIT 1"
)


class Statements:
    """The statement set of one dialect."""

    def __init__(self, *, write: str, forget: str, read: str, latest: str) -> None:
        self._write, self._forget, self._read, self._latest = write, forget, read, latest

    def write(self, process: str, counts: Sequence[Count]) -> Statement:
        return Statement(self._write, (process, json.dumps([count._asdict() for count in counts])))

    def forget(self, span_s: int, keep_s: int, limit: int) -> Statement:
        """Delete spans of this length that began longer ago than that."""
        return Statement(self._forget, (span_s, keep_s, limit))

    def read(self, span_s: int, since_s: int, until_s: int) -> Statement:
        """Of each series in each span: its sum and its greatest value over the processes."""
        return Statement(self._read, (span_s, since_s, until_s))

    def latest(self, span_s: int) -> Statement:
        """When the latest span begins in which anything was counted; no row: there is none."""
        return Statement(self._latest, (span_s,))


STATEMENTS: Final = {
    "postgres": Statements(
        write=_POSTGRES_WRITE, forget=_POSTGRES_FORGET, read=_POSTGRES_READ, latest=_POSTGRES_LATEST
    ),
    "sqlite": Statements(
        write=_SQLITE_WRITE,
        forget=_SQLITE_FORGET,
        read=_SQLITE_READ,
        latest="SELECT since_s FROM onefold_activity WHERE span_s = ?1 ORDER BY since_s DESC LIMIT 1",
    ),
}
