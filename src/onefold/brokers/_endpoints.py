"""Endpoints of webhooks in a table: added, disabled and removed while relays run.

Invariant: an endpoint that fails again and again for a day, or says that it is gone, is disabled, and nothing is sent
to it until a person enables it. What waited for it stays in the outbox.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from onefold._kernel.checkout import with_connection
from onefold._kernel.dialects import SQLITE_NOW_MS, sqlite_values
from onefold._kernel.effects import Batch, Fetch, Statement, Value
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.redaction import redact
from onefold._kernel.topics import find_fault, matches_any
from onefold.errors import ConfigurationError

#: An endpoint is disabled after so many failures in a row, if they began that long ago.
FAILURES_MAX: Final = 10
FAILING_S: Final = 86_400.0

ENDPOINTS_MAX: Final = 100_000

#: As an endpoint's topic. It was so before there were patterns, in which it is a topic of one token.
EVERY_TOPIC: Final = "*"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}", re.ASCII)

_NOW: Final = {
    "postgres": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "sqlite": f"({SQLITE_NOW_MS})",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSeen:
    """An endpoint as it stands."""

    name: str
    url: str
    topics: tuple[str, ...]
    secret: str | None = field(repr=False)
    """None: the broker's own."""
    failures: int
    failing_since_ms: int | None
    last_error: str | None
    disabled_at_ms: int | None

    @property
    def enabled(self) -> bool:
        return self.disabled_at_ms is None

    def wants(self, topic: str) -> bool:
        return is_wanted(self.topics, topic)


def is_wanted(topics: Iterable[str], topic: str) -> bool:
    """Whether an endpoint with these topics and patterns gets the topic."""
    return matches_any((">" if each == EVERY_TOPIC else each for each in topics), topic)


def check_topics(endpoint: str, topics: Iterable[str]) -> None:
    """Raises ConfigurationError."""
    for topic in topics:
        if (fault := find_fault(topic)) is not None:
            raise ConfigurationError(f"topic {topic!r} of {endpoint} is not a topic: {fault}; '*' is every topic")


async def endpoints(dialect: str) -> list[EndpointSeen]:
    """All endpoints, by name."""
    sql = """
        SELECT name, url, topics, secret, failures, failing_since_ms, last_error, disabled_at_ms
        FROM onefold_endpoint ORDER BY name LIMIT $1::integer
    """

    async def work() -> list[EndpointSeen]:
        rows = await Fetch(_statement(dialect, sql, ENDPOINTS_MAX))
        return [
            EndpointSeen(
                name=name, url=url, topics=tuple(json.loads(topics)), secret=secret, failures=failures,
                failing_since_ms=since, last_error=error, disabled_at_ms=disabled,
            )
            for name, url, topics, secret, failures, since, error, disabled in rows
        ]  # fmt: skip

    return await with_connection(work)


async def add(dialect: str, name: str, url: str, topics: Sequence[str], *, secret: str | None = None) -> None:
    """Add an endpoint, or change it. It is enabled."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"endpoint {redact(name)!r} must be 1 to 100 letters, digits and '._:-'")
    check_url(f"the endpoint {name!r}", url)
    check_topics(f"endpoint {name!r}", topics)
    if not topics:
        raise ConfigurationError(f"endpoint {name!r} has no topic: name some, or '*' for every topic")
    sql = """
        INSERT INTO onefold_endpoint (name, url, topics, secret) VALUES ($1::text, $2::text, $3::text, $4::text)
        ON CONFLICT (name) DO UPDATE SET url = excluded.url, topics = excluded.topics, secret = excluded.secret,
            failures = 0, failing_since_ms = NULL, last_error = NULL, disabled_at_ms = NULL
    """
    await _change(dialect, sql, name, url, json.dumps(list(topics)), secret)


async def remove(dialect: str, name: str) -> int:
    """Remove an endpoint. What waits for it in the outbox is refused from now on, and ends as dead letters."""
    return await _change(dialect, "DELETE FROM onefold_endpoint WHERE name = $1::text", name)


async def enable(dialect: str, name: str) -> int:
    sql = """
        UPDATE onefold_endpoint SET failures = 0, failing_since_ms = NULL, disabled_at_ms = NULL WHERE name = $1::text
    """
    return await _change(dialect, sql, name)


async def disable(dialect: str, name: str, reason: str) -> int:
    sql = f"""
        UPDATE onefold_endpoint SET disabled_at_ms = {_NOW[dialect]}, last_error = $2::text
        WHERE name = $1::text AND disabled_at_ms IS NULL
    """
    return await _change(dialect, sql, name, reason)


async def note_success(dialect: str, name: str) -> int:
    """Its run of failures is over."""
    sql = """
        UPDATE onefold_endpoint SET failures = 0, failing_since_ms = NULL, last_error = NULL
        WHERE name = $1::text AND (failures > 0 OR last_error IS NOT NULL) AND disabled_at_ms IS NULL
    """
    return await _change(dialect, sql, name)


async def note_failures(
    dialect: str, name: str, count: int, error: str, *, failures_max: int = FAILURES_MAX, failing_s: float = FAILING_S
) -> bool:
    """So many requests in a row have failed; whether that was once too often, and it is disabled now."""
    now = _NOW[dialect]
    counted = f"""
        UPDATE onefold_endpoint SET failures = failures + $2::integer, last_error = $3::text,
            failing_since_ms = coalesce(failing_since_ms, {now})
        WHERE name = $1::text
    """
    condemned = f"""
        UPDATE onefold_endpoint SET disabled_at_ms = {now}
        WHERE name = $1::text AND disabled_at_ms IS NULL AND failures >= $2::integer
          AND failing_since_ms <= ({now} - $3::bigint)
    """
    await _change(dialect, counted, name, count, error)
    return await _change(dialect, condemned, name, failures_max, round(failing_s * 1000)) > 0


def check_url(what: str, url: str) -> str:
    """The URL, if requests can be sent to it. Raises ConfigurationError."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of brackets, or of the port
        usable = False
    if not usable or parts.username is not None:
        found = f": {redact(url)} is not" if "://" in url else "; this one has no scheme"
        raise ConfigurationError(f"{what} must be an http(s) URL with a host and without a user or password{found}")
    return url


async def _change(dialect: str, sql: str, *values: Value) -> int:
    async def work() -> int:
        return await Batch((_statement(dialect, sql, *values),))

    return await with_connection(work)


def _statement(dialect: str, sql: str, *values: Value) -> Statement:
    return Statement(qualified(sql) if dialect == "postgres" else sqlite_values(sql), values)
