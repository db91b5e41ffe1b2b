"""What the Postgres drivers set and read in a session: where our tables are, its codecs, its role and limits, its
errors; and what a DSN may be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from onefold._kernel.dialects import POSTGRES_LIMITS, POSTGRES_PROOF
from onefold._kernel.effects import BatchItem, Boundary, Row, Statement, Value
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.ports import TWO_CONNECTIONS
from onefold._kernel.sqlstates import SQLSTATES
from onefold.errors import (
    ConfigurationError,
    ConnectionLost,
    OnefoldError,
    PoolExhausted,
    SchemaMissing,
    StatementRefused,
    StoreUnavailable,
)

_HINTS = {
    "42501": "; `onefold docs postgres` says what onefold's role must be granted. A handler may SET LOCAL ROLE, but a "
    "SESSION AUTHORIZATION that it takes must be reset before it returns"
}

#: A schema that a role may not use is passed over without a word, as if it were not on the search path.
_MISSING_HINT = (
    "; run `onefold migrate` to create onefold's tables. If they are there: their schema must be on the role's search "
    "path, and the role needs USAGE on it (`onefold docs postgres`)"
)

#: A host of a DSN, or none, and its port.
_HOST = re.compile(r"(?:\[[^\[\]]*\]|[^\[\]:]*)(?::(?P<port>[^\[\]:]*))?")

#: The schema that our tables are in: where a session of this role begins to look, and where this one looks now.
#: One statement is one transaction, and so the search path is as it was when it ends.
_TABLES_OF_PATH = """
(SELECT n.nspname::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.oid = (SELECT {looked_up}))
"""
#: What values look like by the time that we get them: see `_SAMPLES`.
_SAMPLED = "'text'::text, 'bytea'::bytea, true, 2::smallint, 4::int, 8::bigint"
FIND_TABLES = Statement(
    qualified(
        "SELECT "
        + _TABLES_OF_PATH.format(looked_up="to_regclass('onefold_migration')")
        + ", "
        + _TABLES_OF_PATH.format(
            looked_up="CASE WHEN set_config('search_path', (SELECT reset_val FROM pg_settings "
            "WHERE name = 'search_path'), true) IS NOT NULL THEN to_regclass('onefold_migration') END"
        )
        + f", {_SAMPLED}"
    )
)

#: What is read of values, and what the server reads of them: whether a handler has given its connection other codecs.
SAMPLES = Statement(
    qualified(
        f"SELECT {_SAMPLED}, $1::text = 'text', $2::bytea = 'bytea', $3::smallint = 2, $4::int = 4, $5::bigint = 8"
    ),
    ("text", b"bytea", 2, 4, 8),
)

#: What must be read of them. An application may have given its connections codecs that make something else of it.
_SAMPLES: tuple[tuple[str, Value], ...] = (
    ("text", "text"),
    ("bytea", b"bytea"),
    ("bool", True),
    ("int2", 2),
    ("int4", 4),
    ("int8", 8),
)

_ROLE = "current_setting('onefold.role', true)"
_THEIR_ROLE = "current_setting('onefold.their_role', true)"
_ROLE_NOW = "current_setting('role')"
_LIMITS = "current_setting('onefold.limits', true)"
_WAIT = "current_setting('lock_timeout')"
_THEIR_WAIT = "current_setting('onefold.their_lock_timeout', true)"

_AS_BEGUN = Statement(
    qualified(f"""
SELECT WHERE set_config('onefold.their_role', {_ROLE_NOW}, true) IS NULL
          OR CASE WHEN coalesce({_ROLE}, '') = '' THEN false WHEN {_ROLE} = {_ROLE_NOW} THEN false
                  ELSE set_config('role', {_ROLE}, true) IS NULL END
          OR CASE WHEN coalesce({_LIMITS}, '') = '' THEN false WHEN {_LIMITS} = ({POSTGRES_LIMITS}) THEN false
                  ELSE set_config('onefold.their_lock_timeout', {_WAIT}, true) IS NULL
                    OR set_config('statement_timeout', split_part({_LIMITS}, ' ', 1), true) IS NULL
                    OR set_config('lock_timeout', split_part({_LIMITS}, ' ', 2), true) IS NULL END
""")
)

#: In front of COMMIT, which runs what was deferred: the handler's role, and the longer of both patiences with locks
#: ('0' is without end). No limit on statements applies to it.
_FOR_COMMIT = Statement(
    qualified(f"""
SELECT WHERE CASE WHEN {_THEIR_ROLE} = {_ROLE_NOW} THEN false ELSE set_config('role', {_THEIR_ROLE}, true) IS NULL END
          OR CASE WHEN coalesce({_THEIR_WAIT}, '') = '' OR {_WAIT} = '0' THEN false
                  WHEN {_THEIR_WAIT} <> '0' AND {_THEIR_WAIT}::interval < {_WAIT}::interval THEN false
                  ELSE set_config('lock_timeout', {_THEIR_WAIT}, true) IS NULL END
""")
)


def error_for(sqlstate: str | None, error: BaseException) -> OnefoldError:
    """Our error for a vendor's. A failure without SQLSTATE never reached the server, or lost its answer."""
    if sqlstate is None:
        return ConnectionLost(f"Postgres: {type(error).__name__}: {error}")
    kind = SQLSTATES.get(sqlstate) or SQLSTATES.get(sqlstate[:2]) or StatementRefused
    hint = _HINTS.get(sqlstate, _MISSING_HINT if kind is SchemaMissing else "")
    return kind(f"Postgres {sqlstate}: {error}{hint}")


def unsent_error(error: BaseException) -> StatementRefused:
    """Our error for a statement that the driver would not even send."""
    return StatementRefused(f"Postgres: {type(error).__name__}: {error}")


def connect_error(error: BaseException) -> StoreUnavailable:
    """Our error for a connection that could not be had."""
    # What the server or libpq says needs no advice; the system's own words name neither host nor database.
    advice = "; is a server up there, and are host and port right?" if isinstance(error, OSError) else ""
    return StoreUnavailable(f"no connection to Postgres: {type(error).__name__}: {error}{advice}")


def none_free(seconds: float) -> StoreUnavailable:
    """Our error for a pool that has nothing to give."""
    return PoolExhausted(
        f"no Postgres connection could be had within {seconds:g} s; is the server up, and the pool large enough? "
        f"{TWO_CONNECTIONS}"
    )


def check_dsn(dsn: str) -> str:
    """The DSN, if it is a URL the drivers agree on. It may hold a password, so no message repeats it."""
    scheme, separator, rest = dsn.partition("://")
    if not separator or scheme not in ("postgresql", "postgres"):
        raise ConfigurationError("a Postgres DSN is written postgresql://user:password@host:port/database")
    location = rest.partition("?")[0]
    authority = location.partition("/")[0]
    user, _, hosts = authority.rpartition("@")
    # A raw "@" or "/" in a password moves what follows it into the host or the database name.
    if "@" in user or "@" in location[len(authority) :] or "#" in dsn:
        raise ConfigurationError(
            "the Postgres DSN has an '@', '/' or '#' too many; inside a user name or a password they are "
            "percent-encoded: %40, %2F, %23"
        )
    # One bracket alone, in a password too, begins an IPv6 address for asyncpg, which it then cannot read.
    if ("[" in authority) != ("]" in authority):
        raise ConfigurationError(
            "the Postgres DSN has a '[' or ']' too many; inside a user name or a password they are percent-encoded: "
            "%5B, %5D; an IPv6 address stands between both: [::1]:5432"
        )
    for host in hosts.split(","):
        found = _HOST.fullmatch(host)
        if found is None:
            raise ConfigurationError("the host in the Postgres DSN cannot be read: write name:port or [IPv6]:port")
        if found["port"] and not found["port"].isdecimal():
            raise ConfigurationError("the port in the Postgres DSN is not a number")
    return dsn


class Place:
    """Where our tables are in one database. Found once, with the search path of a fresh session: what a handler, or the
    one before it on this connection, does to the path changes nothing."""

    __slots__ = ("schema",)

    def __init__(self) -> None:
        self.schema: str | None = None

    def read(self, rows: Sequence[Row]) -> str | None:
        """The schema by FIND_TABLES. A schema that only this session looks in (a pool that sets the path of each
        connection it hands out) is good for this session alone; None: there are no tables yet. Raises
        ConfigurationError where the connection reads values in a way of its own."""
        [(found_now, found_afresh, *samples)] = rows
        check_codecs(samples)
        self.schema = found_afresh
        schema: str | None = found_afresh or found_now
        return schema


def check_codecs(samples: Sequence[Any]) -> None:
    """Raises ConfigurationError where the samples, or those in front of the answers of SAMPLES, are not as they are
    read by default."""
    read, written = samples[: len(_SAMPLES)], samples[len(_SAMPLES) :]
    for (name, plain), found in zip(_SAMPLES, read, strict=True):
        if (bytes(found) if isinstance(found, memoryview) else found) != plain:
            raise _codec_error(name, f"they read {plain!r} as {found!r}")
    for name, was_written in zip(("text", "bytea", "int2", "int4", "int8"), written, strict=bool(written)):
        if was_written is not True:
            raise _codec_error(name, "they write another value than they are given")


def _codec_error(name: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"the database's connections have a codec of their own for {name}: {what}, and onefold could not read its own "
        "rows. Take it off the driver's connections (a pool's `init`, an engine's `connect` listener, a handler), or "
        "give onefold a pool or an engine without it"
    )


def as_ourselves(items: Sequence[BatchItem]) -> Sequence[BatchItem]:
    """The items, where a handler may have taken another role (SET LOCAL ROLE), or less time: our statements run under
    the role and the limits that the transaction began with, and what COMMIT still has to run (deferred constraints)
    under the handler's role, and with its patience where that is longer. Every role may run the proof that it is still
    that transaction: where there is nothing else, nothing is changed."""
    places = [n for n, item in enumerate(items) if type(item) is Statement and item is not POSTGRES_PROOF]
    if not places:
        return items
    first, end = places[0], places[-1] + 1
    back = (_FOR_COMMIT,) if items[-1] is Boundary.COMMIT else ()
    return (*items[:first], _AS_BEGUN, *items[first:end], *back, *items[end:])
