"""Idempotency on SQLite: two locks on a file beside the database, one completed row.

The locks are functions of our connections (see `db/sqlite/_locks.py`) and last as long as the connection is out. LOCK
and LOOK are two statements here, too: a statement reads what was committed before it began, so one that locked and
looked at once would look at the world before its lock. The write lock is taken when the handler first touches its
connection, or else by the settle: a claim only reads. Times are SQLite's own, in milliseconds since 1970.
"""

from __future__ import annotations

from functools import lru_cache

from onefold._idempotency.model import SCHEMA_VERSION, SIGNPOST_STATUS, SIGNPOSTS_MAX, Answer, Ask, key_lock, lock_ids
from onefold._kernel.clock import milliseconds
from onefold._kernel.dialects import SQLITE_NOW_MS as _NOW
from onefold._kernel.effects import BatchItem, Boundary, Statement, Value

SAME_IN_FLIGHT = "same"
OTHER_IN_FLIGHT = "other"

#: Nothing is begun before the handler, so there is nothing for a savepoint to be set in. What proves that the
#: transaction is the one the handler began is the connection: it lets no other code end it, and knows if SQLite did.
BEFORE_HANDLER: tuple[BatchItem, ...] = ()
KEEP: tuple[BatchItem, ...] = (Boundary.BEGIN,)
UNDO: tuple[BatchItem, ...] = (Boundary.ROLLBACK, Boundary.BEGIN)
PROOF: tuple[BatchItem, ...] = (Statement("SELECT 1"),)
UNDO_WHOLE: tuple[BatchItem, ...] = UNDO  # a statement that fails aborts nothing here

#: No row means: run. Any row means: look closer.
_CHECK_FREE = """
SELECT 1 FROM onefold_record WHERE digest = ?1
UNION ALL
SELECT 1 WHERE onefold_refused() IS NOT NULL
"""

_CHECK_FREE_LATE = f"""
{_CHECK_FREE}
UNION ALL
SELECT 1 WHERE {_NOW} > ?2
"""

#: The last column is how many milliseconds it is kept from now on; 0 once it is past its retention.
_RECORD = f"""
digest, fingerprint, operation, schema_version, status, headers, body, max(0, expires_at_ms - {_NOW})
"""

_EXPLAIN = f"""
SELECT 0, onefold_refused(), {_NOW} > ?2, {_RECORD}
FROM (SELECT 1) LEFT JOIN onefold_record ON digest = ?1
"""

_FIND = f"SELECT {_RECORD} FROM onefold_record WHERE digest = ?1"

#: A record that is there already gives NULL, which the table refuses: the batch ends before COMMIT. One that is past
#: its retention is replaced.
_SETTLE = f"""
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at_ms)
VALUES (?1, ?2, ?3, {SCHEMA_VERSION}, ?4, ?5, ?6, max({_NOW}, ?7) + ?8){{signpost}}
ON CONFLICT (digest) DO UPDATE SET
    status = CASE WHEN expires_at_ms <= {_NOW} THEN excluded.status END,
    fingerprint = excluded.fingerprint,
    operation = excluded.operation,
    schema_version = excluded.schema_version,
    headers = excluded.headers,
    body = excluded.body,
    expires_at_ms = excluded.expires_at_ms
"""

#: Keeps the place where an earlier release or deploy looks, so that it does not run what is done; see `Ask.signposts`.
_SIGNPOST = f""",
       (?{{number}}, x'', '', {SCHEMA_VERSION}, {SIGNPOST_STATUS}, x'', NULL, max({_NOW}, ?7) + ?8)"""

#: By the number of signposts.
_SETTLES = tuple(
    _SETTLE.format(signpost="".join([_SIGNPOST.format(number=9 + n) for n in range(signposts)]))
    for signposts in range(1 + SIGNPOSTS_MAX)
)

#: A record gives NULL, which the table refuses: the batch ends.
_REFUSE_RECORDED = f"""
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, expires_at_ms)
SELECT NULL, x'', '', 0, 0, x'', 0 FROM onefold_record WHERE digest = ?1 AND expires_at_ms > {_NOW} LIMIT 1
"""

_STATUS = f"""
SELECT (SELECT status FROM onefold_record WHERE digest = ?1 AND expires_at_ms > {_NOW}),
       (SELECT strftime('%Y-%m-%dT%H:%M:%SZ', expires_at_ms / 1000, 'unixepoch')
          FROM onefold_record WHERE digest = ?1 AND expires_at_ms > {_NOW}),
       onefold_locked(?2)
"""

_REAP = f"""
DELETE FROM onefold_record WHERE digest IN (
    SELECT digest FROM onefold_record WHERE expires_at_ms <= {_NOW} ORDER BY expires_at_ms LIMIT ?1)
"""


def opening(ask: Ask) -> tuple[BatchItem, ...]:
    return ()


def lock(ask: Ask) -> Statement:
    """In this order: who is refused one of the first meets the same request, one of the others another payload."""
    requests = ask.request_locks
    numbers = (*requests, *lock_ids(ask.names))
    return Statement(_lock(len(numbers)), (len(requests), *numbers), brief=True)


def check_free(ask: Ask) -> Statement:
    if ask.key_ms is None:
        return _among(_CHECK_FREE, ask)
    return _among(_CHECK_FREE_LATE, ask, ask.late_after_ms)


def explain(ask: Ask) -> Statement:
    """Whether it is too late to look (never: nothing was read before the lock), the verdict of LOCK, whether the key is
    late, and the records (NULLs when there is none)."""
    return _among(_EXPLAIN, ask, ask.late_after_ms)


def find(ask: Ask) -> Statement:
    return _among(_FIND, ask)


def forget(ask: Ask) -> tuple[BatchItem, ...]:
    """Nothing: the settle replaces a record that is past its retention, and until then nothing is written."""
    return ()


def refuse_recorded(ask: Ask) -> tuple[BatchItem, ...]:
    """A claim reads before it has the write lock, and a work may have been settled in between."""
    named = _for_names(_REFUSE_RECORDED, len(ask.names), 2)
    return (Statement(named, ask.names),)


def settle(ask: Ask, answer: Answer) -> Statement:
    values = (
        ask.digest,
        ask.fingerprint,
        ask.operation,
        answer.status,
        answer.headers,
        answer.body,
        ask.key_ms or 0,
        milliseconds(ask.retention_s),
    )
    return Statement(_SETTLES[len(ask.signposts)], (*values, *ask.signposts))


#: What a stricter isolation needs elsewhere: every transaction of SQLite is serializable, and begins after the look.
reserve = check_free
settle_reserved = settle


def status(digest: bytes) -> Statement:
    return Statement(_STATUS, (digest, key_lock(digest)))


def reap(limit: int) -> Statement:
    return Statement(_REAP, (limit,))


@lru_cache(maxsize=16)
def _lock(numbers: int) -> str:
    return f"SELECT onefold_lock(?1{''.join(f', ?{number}' for number in range(2, numbers + 2))})"


def _among(sql: str, ask: Ask, *values: Value) -> Statement:
    """The statement for all names of an intent; most have one only."""
    if not ask.earlier and ask.unmounted is None:
        return Statement(sql, (ask.digest, *values), brief=True)
    named = _for_names(sql, len(ask.digests), 2 + len(values))
    return Statement(named, (ask.digest, *values, *ask.digests[1:]), brief=True)


@lru_cache(maxsize=64)
def _for_names(sql: str, names: int, first: int) -> str:
    digests = ", ".join(f"?{number}" for number in (1, *range(first, first + names - 1)))
    return sql.replace("digest = ?1", f"digest IN ({digests})")
