"""Statements of operators on keys: what is stored under a name, what is stored at all, and erasing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onefold._idempotency.model import key_lock
from onefold._kernel.dialects import SQLITE_NOW_MS, sqlite_values
from onefold._kernel.effects import Statement
from onefold._kernel.per_dialect import PerDialect
from onefold._kernel.pg_catalog import qualified

#: The place of a row in the list is exact: it distinguishes two rows of one millisecond.
_POSTGRES_PLACE: Final = "(extract(epoch FROM expires_at) * 1000000)::bigint"
_POSTGRES_MS: Final = "(extract(epoch FROM {}) * 1000)::bigint"

_COLUMNS: Final = """
    digest, operation, status, schema_version, octet_length(headers), octet_length(body), substr(headers, 1, 1),
    {place}, {expires_ms}, {now_ms}
"""

#: Who holds the lock of a key. Columns of other roles' sessions are NULL for those who may not see them.
_HOLDERS: Final = """
    SELECT l.pid, (extract(epoch FROM a.xact_start) * 1000)::bigint, a.application_name,
           (extract(epoch FROM now()) * 1000)::bigint
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid::bigint = (($1::bigint >> 32) & 4294967295) AND l.objid::bigint = ($1::bigint & 4294967295)
"""

_SQLITE_HOLDERS: Final = f"SELECT NULL, NULL, NULL, {SQLITE_NOW_MS} WHERE onefold_locked(?1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStatements:
    """The statements behind the console's pages of keys, of one dialect."""

    page_text: str
    one_text: str
    answer_text: str
    head_text: str
    holders_text: str
    beside_text: str
    erase_text: str
    has_lease: bool
    """Whether a request that runs in one transaction ends with its lease."""

    def page(self, after: tuple[int, bytes] | None, limit: int) -> Statement:
        """Records that are kept, those that are kept longest first."""
        place, digest = (2**62, b"\xff" * 17) if after is None else after
        return Statement(self.page_text, (place, digest, limit))

    def one(self, digest: bytes) -> Statement:
        return Statement(self.one_text, (digest,))

    def answer(self, digest: bytes) -> Statement:
        """The record with the stored headers and body."""
        return Statement(self.answer_text, (digest,))

    def head(self, digest: bytes) -> Statement:
        """The same with an empty body where there is one."""
        return Statement(self.head_text, (digest,))

    def holders(self, digest: bytes) -> Statement:
        return Statement(self.holders_text, (key_lock(digest),))

    def beside(self, digest: bytes) -> Statement:
        """What was stored at the very moment of a record: its signposts have the same end."""
        return Statement(self.beside_text, (digest,))

    def erase(self, digest: bytes, place: int) -> Statement:
        """Delete the record with this end, and none that was stored after it; a row for what was deleted."""
        return Statement(self.erase_text, (digest, place))


_BESIDE: Final = """
    SELECT digest, status FROM onefold_record
    WHERE expires_at = (SELECT expires_at FROM onefold_record WHERE digest = $1::bytea) LIMIT 4
"""

_RECORD: Final = "digest, fingerprint, operation, schema_version, status, headers, body"
_HEAD: Final = _RECORD.replace("body", "substr(body, 1, 0)")


def _postgres() -> KeyStatements:
    columns = _COLUMNS.format(
        place=_POSTGRES_PLACE, expires_ms=_POSTGRES_MS.format("expires_at"), now_ms=_POSTGRES_MS.format("now()")
    )
    place = "(to_timestamp(0) + ($1::bigint * interval '1 microsecond'))"
    return KeyStatements(
        page_text=qualified(f"""
            SELECT {columns} FROM onefold_record
            WHERE status > 0 AND expires_at > now() AND expires_at <= {place}
              AND (expires_at < {place} OR digest < $2::bytea)
            ORDER BY expires_at DESC, digest DESC LIMIT $3::int
        """),
        one_text=qualified(f"SELECT {columns} FROM onefold_record WHERE digest = $1::bytea"),
        answer_text=qualified(f"SELECT {_RECORD} FROM onefold_record WHERE digest = $1::bytea"),
        head_text=qualified(f"SELECT {_HEAD} FROM onefold_record WHERE digest = $1::bytea"),
        holders_text=qualified(_HOLDERS),
        beside_text=qualified(_BESIDE),
        erase_text=qualified(
            f"DELETE FROM onefold_record WHERE digest = $1::bytea AND {_POSTGRES_PLACE} = $2::bigint RETURNING digest"
        ),
        has_lease=True,
    )


def _sqlite() -> KeyStatements:
    columns = _COLUMNS.format(place="expires_at_ms", expires_ms="expires_at_ms", now_ms=SQLITE_NOW_MS)
    # length, and not octet_length, which SQLite has since 3.43: both are blobs.
    columns = columns.replace("octet_length", "length")
    return KeyStatements(
        page_text=f"""
            SELECT {columns} FROM onefold_record
            WHERE status > 0 AND expires_at_ms > {SQLITE_NOW_MS} AND expires_at_ms <= ?1
              AND (expires_at_ms < ?1 OR digest < ?2)
            ORDER BY expires_at_ms DESC, digest DESC LIMIT ?3
        """,
        one_text=f"SELECT {columns} FROM onefold_record WHERE digest = ?1",
        answer_text=f"SELECT {_RECORD} FROM onefold_record WHERE digest = ?1",
        head_text=f"SELECT {_HEAD} FROM onefold_record WHERE digest = ?1",
        holders_text=_SQLITE_HOLDERS,
        beside_text=sqlite_values(_BESIDE).replace("expires_at", "expires_at_ms"),
        erase_text="DELETE FROM onefold_record WHERE digest = ?1 AND expires_at_ms = ?2 RETURNING digest",
        has_lease=False,
    )


STATEMENTS: Final = PerDialect(postgres=_postgres, sqlite=_sqlite)
