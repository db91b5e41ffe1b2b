"""Idempotency on Postgres: two advisory locks, one completed row.

`LOCK` and `LOOK` travel in one round trip but are two statements, because under READ COMMITTED each statement
sees its own snapshot: one that locked and looked at once would look at the world before its lock, and run keys
twice. A lock that is refused leaves word of it in a transaction-local setting, where `LOOK` finds it. Where the
transaction is stricter, and so has one snapshot, `RESERVE` looks instead.
"""

from __future__ import annotations

from functools import lru_cache

from onefold._idempotency.model import SCHEMA_VERSION, SIGNPOST_STATUS, Answer, Ask, key_lock, lock_ids
from onefold._kernel.dialects import POSTGRES_LEASE, postgres_span
from onefold._kernel.effects import WHOLE, BatchItem, Boundary, Statement, Value, begin_at
from onefold._kernel.pg_catalog import qualified

#: The results of LOCK when it was refused one. Nothing, or an empty text, means: both are held.
SAME_IN_FLIGHT = "same"
OTHER_IN_FLIGHT = "other"

#: The savepoint that the handler works on dies with the transaction that claimed: whether it can still be ended is the
#: proof that the handler has not committed by itself.
BEFORE_HANDLER: tuple[BatchItem, ...] = (Boundary.SAVEPOINT,)
KEEP: tuple[BatchItem, ...] = (Boundary.RELEASE_SAVEPOINT,)
UNDO: tuple[BatchItem, ...] = (Boundary.ROLLBACK_TO_SAVEPOINT,)
PROOF: tuple[BatchItem, ...] = (Boundary.RELEASE_SAVEPOINT,)
UNDO_WHOLE: tuple[BatchItem, ...] = (WHOLE, *UNDO)

#: The lease first, then the locks. Neither condition ever holds: no row is returned, because none would be read.
_LOCK = f"""
SELECT
WHERE {POSTGRES_LEASE}
   OR CASE {{tries}}
      END = ''
"""

_TRY = "WHEN NOT pg_try_advisory_xact_lock(${number}::bigint) THEN set_config('onefold.refused', '{verdict}', true)"

_STRICT = "current_setting('transaction_isolation') IN ('repeatable read', 'serializable')"

#: No row means: run. Any row means: look closer, also where the transaction turns out to have one snapshot only.
_CHECK_FREE = qualified(f"""
SELECT FROM onefold_record WHERE digest = $1::bytea
UNION ALL
SELECT WHERE current_setting('onefold.refused', true) <> '' OR {_STRICT}
""")

_CHECK_FREE_LATE = _CHECK_FREE + qualified("""
UNION ALL
SELECT WHERE extract(epoch FROM now()) * 1000 > $2::bigint
""")

#: The last column is how many milliseconds it is kept from now on; 0 once it is past its retention.
_RECORD = """
digest, fingerprint, operation, schema_version, status, headers, body,
CASE WHEN expires_at > now() THEN ceil(extract(epoch FROM expires_at - now()) * 1000)::bigint ELSE 0 END
"""

_EXPLAIN = qualified(f"""
SELECT {_STRICT},
       current_setting('onefold.refused', true),
       extract(epoch FROM now()) * 1000 > $2::bigint,
       {_RECORD}
FROM (SELECT 1) AS one LEFT JOIN onefold_record ON digest = $1::bytea
""")

_FIND = qualified(f"SELECT {_RECORD} FROM onefold_record WHERE digest = $1::bytea")

_FORGET = qualified("DELETE FROM onefold_record WHERE digest = $1::bytea AND expires_at <= now()")

_INSERT = f"""
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at)
VALUES ($1::bytea, $2::bytea, $3::text, {SCHEMA_VERSION}, $4::smallint, $5::bytea, $6::bytea,
        {{now}} + $7::text::interval)
"""

#: Keeps the place where an earlier release or deploy looks, so that it does not run what is done; see `Ask.signposts`.
_SIGNPOST = f""",
       (${{number}}::bytea, '', '', {SCHEMA_VERSION}, {SIGNPOST_STATUS}, '', NULL, {{now}} + $7::text::interval)
"""

#: A key that is dated is remembered from its own date on, if that lies ahead.
_DATED = "greatest(now(), to_timestamp($8::bigint / 1000.0))"

#: LOOK for transactions with one snapshot, taken before their lock: LOOK would miss a record that was committed in
#: between. A unique index knows no snapshots: the insert of a record to be meets every other, and fails
#: (SerializationFailed) where that one is invisible. It also leaves no trace of a read, for which SERIALIZABLE would
#: break requests that have nothing to do with each other. What is left of it (of a third name, or where a handler has
#: committed by itself) counts as expired. No row means: run.
_RESERVE = f"""
WITH reserved AS (
    INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, expires_at)
    SELECT name, '', '', {SCHEMA_VERSION}, {SIGNPOST_STATUS}, '', '-infinity'
    FROM (VALUES {{names}}) AS names (name)
    WHERE coalesce(current_setting('onefold.refused', true), '') = ''
    ON CONFLICT (digest) DO NOTHING
    RETURNING status)
SELECT WHERE (SELECT count(*) FROM reserved) < {{count}} OR extract(epoch FROM now()) * 1000 > $1::bigint
"""

#: Over reserved rows, and over nothing else: NULL breaks the batch.
_OVER_RESERVED = """
ON CONFLICT (digest) DO UPDATE SET
    digest = CASE WHEN onefold_record.expires_at = '-infinity' THEN excluded.digest END,
    fingerprint = excluded.fingerprint, operation = excluded.operation, schema_version = excluded.schema_version,
    status = excluded.status, headers = excluded.headers, body = excluded.body, expires_at = excluded.expires_at
"""

#: Reads the lock table; trying the lock instead would make an honest request see "in flight".
_STATUS = qualified("""
SELECT (SELECT status FROM onefold_record WHERE digest = $1::bytea AND expires_at > now()),
       (SELECT to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
          FROM onefold_record WHERE digest = $1::bytea AND expires_at > now()),
       EXISTS (SELECT 1 FROM pg_locks
               WHERE locktype = 'advisory' AND objsubid = 1 AND granted
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND classid::bigint = (($2::bigint >> 32) & 4294967295)
                 AND objid::bigint = ($2::bigint & 4294967295))
""")

_REAP = qualified("""
DELETE FROM onefold_record WHERE digest IN (
    SELECT digest FROM onefold_record WHERE expires_at <= now() ORDER BY expires_at LIMIT $1::int
    FOR UPDATE SKIP LOCKED)
""")


def opening(ask: Ask) -> tuple[BatchItem, ...]:
    return (begin_at(ask.isolation),)


def lock(ask: Ask) -> Statement:
    requests = ask.request_locks
    keys = lock_ids(ask.names) if ask.earlier else (key_lock(ask.digest),)
    return Statement(_lock(len(requests), len(keys)), (postgres_span(ask.lease_s), *requests, *keys))


def check_free(ask: Ask) -> Statement:
    if ask.key_ms is None:
        return _among(_CHECK_FREE, ask)
    return _among(_CHECK_FREE_LATE, ask, ask.late_after_ms)


def explain(ask: Ask) -> Statement:
    """Whether the transaction has one snapshot only, the verdict of LOCK, whether the key is late, and the records
    (NULLs when there is none)."""
    return _among(_EXPLAIN, ask, ask.late_after_ms)


def find(ask: Ask) -> Statement:
    return _among(_FIND, ask)


def forget(ask: Ask) -> tuple[BatchItem, ...]:
    """Delete what is past its retention, beneath a new savepoint: a stored 4xx rolls back to it and must not bring the
    old record back."""
    return (_among(_FORGET, ask), *BEFORE_HANDLER)


def refuse_recorded(ask: Ask) -> tuple[BatchItem, ...]:
    """Nothing: a settle waits for the key's lock, which the claim has held since before its look."""
    return ()


def reserve(ask: Ask) -> Statement:
    return Statement(_reserve(len(ask.names)), (ask.late_after_ms, *ask.names))


def settle(ask: Ask, answer: Answer, *, reserved: bool = False) -> Statement:
    values: tuple[Value, ...] = (
        ask.digest,
        ask.fingerprint,
        ask.operation,
        answer.status,
        answer.headers,
        answer.body,
        postgres_span(ask.retention_s),
    )
    if ask.key_ms is not None:
        values += (ask.key_ms,)
    sql = _settle(dated=ask.key_ms is not None, signposts=len(ask.signposts), reserved=reserved)
    return Statement(sql, (*values, *ask.signposts))


def settle_reserved(ask: Ask, answer: Answer) -> Statement:
    """`settle` where the row is reserved."""
    return settle(ask, answer, reserved=True)


def status(digest: bytes) -> Statement:
    return Statement(_STATUS, (digest, key_lock(digest)))


def reap(limit: int) -> Statement:
    return Statement(_REAP, (limit,))


def reap_script(limit: int) -> str:
    """The reaper's statement as plain SQL, for schedulers inside the database."""
    return _REAP.replace("$1::int", str(limit))


@lru_cache(maxsize=16)
def _lock(requests: int, keys: int) -> str:
    """In this order: who is refused one of the first meets the same request, one of the others another payload."""
    verdicts = [SAME_IN_FLIGHT] * requests + [OTHER_IN_FLIGHT] * keys
    tries = [_TRY.format(number=number, verdict=verdict) for number, verdict in enumerate(verdicts, start=2)]
    return qualified(_LOCK.format(tries="\n           ".join(tries)))


@lru_cache(maxsize=4)
def _reserve(count: int) -> str:
    names = ", ".join(f"(${number}::bytea)" for number in range(2, 2 + count))
    return qualified(_RESERVE.format(names=names, count=count))


@lru_cache(maxsize=16)
def _settle(*, dated: bool, signposts: int, reserved: bool) -> str:
    now, first = (_DATED, 9) if dated else ("now()", 8)
    also = "".join([_SIGNPOST.format(number=number, now=now) for number in range(first, first + signposts)])
    return qualified(_INSERT.format(now=now) + also + (_OVER_RESERVED if reserved else ""))


def _among(sql: str, ask: Ask, *values: Value) -> Statement:
    """The statement for all names of an intent; most have one only."""
    if not ask.earlier and ask.unmounted is None:
        return Statement(sql, (ask.digest, *values))
    digest, *others = ask.digests
    return Statement(_for_names(sql, 1 + len(others), 2 + len(values)), (digest, *values, *others))


@lru_cache(maxsize=64)
def _for_names(sql: str, names: int, first: int) -> str:
    digests = [f"${number}::pg_catalog.bytea" for number in (1, *range(first, first + names - 1))]
    return sql.replace(digests[0], f"ANY (ARRAY[{', '.join(digests)}])")
