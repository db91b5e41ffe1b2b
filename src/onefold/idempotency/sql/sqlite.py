"""Idempotency on SQLite: a committed claim with lease and fence, then one completed row.

Times are SQLite's own, in milliseconds since 1970. A fence is a random number that no other claim has, so a
holder whose lease was taken over can neither settle nor release what is no longer its own.
"""

from __future__ import annotations

from onefold._kernel.clock import milliseconds
from onefold._kernel.dialects import SQLITE_NOW_MS as _NOW
from onefold._kernel.effects import Statement
from onefold.idempotency.model import SCHEMA_VERSION, Answer, Ask

_PEEK = f"""
SELECT {_NOW} > ?2,
       (SELECT fingerprint FROM onefold_claim WHERE digest = ?1),
       (SELECT lease_until_ms - {_NOW} FROM onefold_claim WHERE digest = ?1),
       fingerprint, schema_version, status, headers, body, expires_at_ms <= {_NOW}
FROM (SELECT 1) LEFT JOIN onefold_record ON digest = ?1
"""

#: Refused by the table's NOT NULLs when the request is done already, or when somebody else holds the claim. A lease
#: that ran out is taken over, but only by the same payload: the fingerprint survives.
_TAKE = f"""
INSERT INTO onefold_claim (digest, fingerprint, operation, fence, lease_until_ms, forget_after_ms)
VALUES (CASE WHEN NOT EXISTS (SELECT 1 FROM onefold_record WHERE digest = ?1 AND expires_at_ms > {_NOW}) THEN ?1 END,
        ?2, ?3, ?4, {_NOW} + ?5, {_NOW} + ?6)
ON CONFLICT (digest) DO UPDATE SET
    fence = CASE WHEN fingerprint = excluded.fingerprint AND lease_until_ms <= {_NOW} THEN excluded.fence END,
    operation = excluded.operation,
    lease_until_ms = excluded.lease_until_ms,
    forget_after_ms = excluded.forget_after_ms
"""

#: A claim that is no longer ours gives NULL, which the table refuses: the batch ends before COMMIT. So does a record
#: that is there already, unless it is past its retention.
_SETTLE = f"""
INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_at_ms)
VALUES ((SELECT digest FROM onefold_claim WHERE digest = ?1 AND fence = ?2),
        ?3, ?4, {SCHEMA_VERSION}, ?5, ?6, ?7, max({_NOW}, ?8) + ?9)
ON CONFLICT (digest) DO UPDATE SET
    status = CASE WHEN expires_at_ms <= {_NOW} THEN excluded.status END,
    fingerprint = excluded.fingerprint,
    operation = excluded.operation,
    schema_version = excluded.schema_version,
    headers = excluded.headers,
    body = excluded.body,
    expires_at_ms = excluded.expires_at_ms
"""

_DROP = "DELETE FROM onefold_claim WHERE digest = ?1 AND fence = ?2"

_RENEW = f"UPDATE onefold_claim SET lease_until_ms = {_NOW} + ?3 WHERE digest = ?1 AND fence = ?2"

_STATUS = f"""
SELECT (SELECT status FROM onefold_record WHERE digest = ?1 AND expires_at_ms > {_NOW}),
       (SELECT strftime('%Y-%m-%dT%H:%M:%SZ', expires_at_ms / 1000, 'unixepoch')
          FROM onefold_record WHERE digest = ?1 AND expires_at_ms > {_NOW}),
       EXISTS (SELECT 1 FROM onefold_claim WHERE digest = ?1 AND lease_until_ms > {_NOW})
"""

_REAP_RECORDS = f"""
DELETE FROM onefold_record WHERE digest IN (
    SELECT digest FROM onefold_record WHERE expires_at_ms <= {_NOW} ORDER BY expires_at_ms LIMIT ?1)
"""

_REAP_CLAIMS = f"""
DELETE FROM onefold_claim WHERE digest IN (
    SELECT digest FROM onefold_claim WHERE lease_until_ms <= {_NOW} AND forget_after_ms <= {_NOW} LIMIT ?1)
"""


def peek(ask: Ask) -> Statement:
    """Whether the key is late, the claim (if any), the record (if any)."""
    return Statement(_PEEK, (ask.digest, ask.late_after_ms))


def take(ask: Ask, fence: int) -> Statement:
    return Statement(
        _TAKE,
        (ask.digest, ask.fingerprint, ask.operation, fence, milliseconds(ask.lease_s), milliseconds(ask.retention_s)),
    )


def settle(ask: Ask, fence: int, answer: Answer) -> Statement:
    return Statement(
        _SETTLE,
        (
            ask.digest,
            fence,
            ask.fingerprint,
            ask.operation,
            answer.status,
            answer.headers,
            answer.body,
            ask.key_ms or 0,
            milliseconds(ask.retention_s),
        ),
    )


def drop(digest: bytes, fence: int) -> Statement:
    return Statement(_DROP, (digest, fence))


def renew(ask: Ask, fence: int) -> Statement:
    return Statement(_RENEW, (ask.digest, fence, milliseconds(ask.lease_s)))


def status(digest: bytes) -> Statement:
    return Statement(_STATUS, (digest,))


def reap_records(limit: int) -> Statement:
    return Statement(_REAP_RECORDS, (limit,))


def reap_claims(limit: int) -> Statement:
    return Statement(_REAP_CLAIMS, (limit,))
