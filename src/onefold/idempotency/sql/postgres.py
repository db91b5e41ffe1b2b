"""Idempotency on Postgres: two advisory locks, one completed row.

`LOCK` and `LOOK` travel in one round trip but are two statements, because under READ COMMITTED each statement
sees its own snapshot: one that locked and looked at once would look at the world before its lock, and run keys
twice. A lock that is refused leaves word of it in a transaction-local setting, where `LOOK` finds it.
"""

from __future__ import annotations

from functools import lru_cache

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Statement
from onefold.idempotency.model import SCHEMA_VERSION, Answer, Ask, key_lock

#: What LOCK says when it was refused one. Nothing, or an empty text, means: both are held.
SAME_IN_FLIGHT = "same"
OTHER_IN_FLIGHT = "other"

#: The timeout is the lease: a stopped or half-open peer would otherwise hold its locks for ever. Where there is one for
#: the whole transaction it covers the idle time too. Neither comparison ever holds: a row would be read by nobody.
_LOCK = """
SELECT
WHERE set_config(CASE WHEN current_setting('server_version_num')::int >= 170000 THEN 'transaction_timeout'
                      ELSE 'idle_in_transaction_session_timeout' END,
                 $1::text, true) IS NULL
   OR CASE WHEN NOT pg_try_advisory_xact_lock($2::bigint) THEN set_config('onefold.refused', 'same', true)
           WHEN NOT pg_try_advisory_xact_lock($3::bigint) THEN set_config('onefold.refused', 'other', true)
      END = ''
"""

#: No row means: run. Any row means: look closer.
_LOOK = """
SELECT FROM onefold_record WHERE digest = $1::bytea
UNION ALL
SELECT WHERE current_setting('onefold.refused', true) <> ''
"""

_LOOK_LATE = (
    _LOOK
    + """
UNION ALL
SELECT WHERE extract(epoch FROM now()) * 1000 > $2::bigint
"""
)

_RECORD = "fingerprint, schema_version, status, headers, body, expires_at <= now()"

_SEE = f"""
SELECT current_setting('onefold.refused', true),
       extract(epoch FROM now()) * 1000 > $2::bigint,
       {_RECORD}
FROM (SELECT 1) AS one LEFT JOIN onefold_record ON digest = $1::bytea
"""

_FIND = f"SELECT {_RECORD} FROM onefold_record WHERE digest = $1::bytea"

_FORGET = "DELETE FROM onefold_record WHERE digest = $1::bytea AND expires_at <= now()"

_SETTLE = f"""
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at)
VALUES ($1::bytea, $2::bytea, $3::text, {SCHEMA_VERSION}, $4::smallint, $5::bytea, $6::bytea,
        now() + $7::text::interval)
"""

#: A key that is dated is remembered from its own date on, if that lies ahead.
_SETTLE_DATED = _SETTLE.replace("now()", "greatest(now(), to_timestamp($8::bigint / 1000.0))")

#: Reads the lock table; trying the lock instead would make an honest request see "in flight".
_STATUS = """
SELECT (SELECT status FROM onefold_record WHERE digest = $1::bytea AND expires_at > now()),
       (SELECT to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
          FROM onefold_record WHERE digest = $1::bytea AND expires_at > now()),
       EXISTS (SELECT 1 FROM pg_locks
               WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND classid::bigint = ($2::bigint >> 32) & 4294967295
                 AND objid::bigint = $2::bigint & 4294967295)
"""

_REAP = """
DELETE FROM onefold_record WHERE digest IN (
    SELECT digest FROM onefold_record WHERE expires_at <= now() ORDER BY expires_at LIMIT $1::int
    FOR UPDATE SKIP LOCKED)
"""


def lock(ask: Ask) -> Statement:
    return Statement(_LOCK, (_span(ask.lease_s), ask.request_lock, ask.key_lock))


def look(ask: Ask) -> Statement:
    if ask.key_ms is None:
        return Statement(_LOOK, (ask.digest,))
    return Statement(_LOOK_LATE, (ask.digest, ask.late_after_ms))


def see(ask: Ask) -> Statement:
    """The verdict of LOCK, whether the key is late, and the record (NULLs when there is none)."""
    return Statement(_SEE, (ask.digest, ask.late_after_ms))


def find(digest: bytes) -> Statement:
    return Statement(_FIND, (digest,))


def forget(digest: bytes) -> Statement:
    """Delete the record if it is past its retention."""
    return Statement(_FORGET, (digest,))


def settle(ask: Ask, answer: Answer) -> Statement:
    values = (
        ask.digest,
        ask.fingerprint,
        ask.operation,
        answer.status,
        answer.headers,
        answer.body,
        _span(ask.retention_s),
    )
    return Statement(_SETTLE, values) if ask.key_ms is None else Statement(_SETTLE_DATED, (*values, ask.key_ms))


def status(digest: bytes) -> Statement:
    return Statement(_STATUS, (digest, key_lock(digest)))


def reap(limit: int) -> Statement:
    return Statement(_REAP, (limit,))


def reap_script(limit: int) -> str:
    """The same as plain SQL, for schedulers inside the database."""
    return _REAP.replace("$1::int", str(limit))


@lru_cache(maxsize=256)
def _span(seconds: float) -> str:
    """As settings and intervals write it."""
    return f"{milliseconds(seconds)}ms"
