"""The audit: one line for each thing that a person does to what is stored, in the transaction that does it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from onefold._kernel.checkout import fetch_rows, run_batch, with_connection
from onefold._kernel.dialects import sqlite_values
from onefold._kernel.effects import Boundary, Statement, Value
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.wakeup_signals import ACTION, DELIVERY_CHANNEL, OUTBOX_CHANNEL
from onefold.errors import ConfigurationError

#: In Postgres' words. `consumer` is empty where it is not about one.
AUDIT: Final = """
    INSERT INTO onefold_audit (actor, action, consumer, details)
    VALUES ($1::text, $2::text, $3::text, $4::text)
"""

#: On Postgres it notifies relays and consumers in all processes: they poll seldom while they listen.
_NOTIFY_AND_AUDIT: Final = f"""
    WITH told AS MATERIALIZED (
        SELECT pg_notify('{OUTBOX_CHANNEL}', '{ACTION}') AS relays,
               pg_notify('{DELIVERY_CHANNEL}', '{ACTION}') AS consumers
    )
    INSERT INTO onefold_audit (actor, action, consumer, details)
    SELECT $1::text, $2::text, $3::text, $4::text FROM told
"""

LINES_MAX: Final = 10_000

_PAGE: Final = """
    SELECT id, {at_ms}, actor, action, consumer, details FROM onefold_audit
    WHERE id < $1::bigint ORDER BY id DESC LIMIT $2::int
"""

#: How much of a line's details an index has: the first name in them, and an id of 30 or 32 characters.
ABOUT_CHARS: Final = 43

_FIND: Final = """
    SELECT id, {at_ms}, actor, action, consumer, details FROM onefold_audit
    WHERE action = $1::text AND {about} = $2::text ORDER BY id DESC LIMIT 1
"""

#: The statement for actions that relays or consumers may have waited for, by dialect.
NOTE: Final = {"postgres": qualified(_NOTIFY_AND_AUDIT), "sqlite": sqlite_values(AUDIT)}
_LINES: Final = {
    "postgres": qualified(_PAGE.format(at_ms="(extract(epoch FROM audit_at) * 1000)::bigint")),
    "sqlite": sqlite_values(_PAGE.format(at_ms="audit_at_ms")),
}

_FOUND: Final = {
    "postgres": qualified(
        _FIND.format(at_ms="(extract(epoch FROM audit_at) * 1000)::bigint", about=f"left(details, {ABOUT_CHARS})")
    ),
    "sqlite": sqlite_values(_FIND.format(at_ms="audit_at_ms", about=f"substr(details, 1, {ABOUT_CHARS})")),
}

_FIRST: Final = 2**63 - 1

_ACTOR_CHARS_MAX: Final = 255
_WHY_CHARS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """What an operator did."""

    id: int
    at_ms: int
    actor: str
    action: str
    consumer: str
    """Empty where it is not about one."""
    details: Mapping[str, Any]


async def list_audit(dialect: str, *, after: int | None = None, limit: int = 100) -> list[AuditLine]:
    """Lines of the audit, the newest first, from behind the line `after` on."""
    if not 1 <= limit <= LINES_MAX:
        raise ConfigurationError(f"limit={limit} must be between 1 and {LINES_MAX}")
    statement = Statement(_LINES[dialect], (_FIRST if after is None else after, limit))
    return [_line(*row) for row in await with_connection(functools.partial(fetch_rows, statement))]


async def find_audit(dialect: str, *, action: str, about: Mapping[str, Any]) -> AuditLine | None:
    """The newest line of this action whose details begin with these: by an index, however long the audit is."""
    statement = Statement(_FOUND[dialect], (action, json.dumps(about)[:ABOUT_CHARS]))
    rows = await with_connection(functools.partial(fetch_rows, statement))
    return _line(*rows[0]) if rows else None


def _line(line: int, at_ms: int, actor: str, action: str, consumer: str, details: str) -> AuditLine:
    return AuditLine(id=line, at_ms=at_ms, actor=actor, action=action, consumer=consumer, details=json.loads(details))


async def write_audit(
    dialect: str, *, actor: str, action: str, details: Mapping[str, Any], why: str = "", consumer: str = ""
) -> None:
    """A line by itself: for what changes nothing in this database, such as a look at a body."""
    note = note_of(dialect, actor=actor, action=action, details=details, why=why, consumer=consumer)
    await with_connection(functools.partial(run_batch, Boundary.BEGIN, note, Boundary.COMMIT))


def note_of(
    dialect: str, *, actor: str, action: str, details: Mapping[str, Any], why: str = "", consumer: str = ""
) -> Statement:
    """The statement that writes a line, for the batch of what it is about."""
    return Statement(NOTE[dialect], audit_values(actor, action, with_why(details, why), consumer=consumer))


def audit_values(actor: str, action: str, details: Mapping[str, Any], *, consumer: str = "") -> tuple[Value, ...]:
    return (check_actor(actor), action, consumer, json.dumps(details))


def with_why(details: Mapping[str, Any], why: str) -> dict[str, Any]:
    """The details of a line, with what the person gave as the reason, if anything."""
    if len(why) > _WHY_CHARS_MAX:
        raise ConfigurationError(f"the reason for the audit has {len(why)} characters, at most {_WHY_CHARS_MAX}")
    return {**details, "why": why.strip()} if why.strip() else dict(details)


def check_actor(actor: str) -> str:
    """The actor, if it is a usable name; else ConfigurationError."""
    if not actor.strip() or len(actor) > _ACTOR_CHARS_MAX or not actor.isprintable():
        raise ConfigurationError(
            f"actor={actor!r} must say who does this, in 1 to {_ACTOR_CHARS_MAX} printable characters"
        )
    return actor
