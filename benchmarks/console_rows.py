"""Rows for the console to look at: as many as are asked for in each of onefold's tables, made by the database itself.

Every state that a page lists has its share, also those that are rare in practice: a fifth of the outbox are dead
letters, half of the failed messages are dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from onefold._observe.activity.counts import SPANS_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """What each dialect says differently."""

    numbers: Callable[[int], str]
    text: Callable[[str], str]
    digest: Callable[[str], str]
    """16 bytes of a number."""
    ago: Callable[[str], str]
    """The time so many seconds ago."""
    moment: str
    """What the names of columns with a time end with."""
    never: str
    no_bytes: str
    now_s: str


_POSTGRES: Final = _Words(
    numbers=lambda rows: f"generate_series(1, {rows}) AS g (n)",
    text=lambda number: f"({number})::text",
    digest=lambda number: f"decode(lpad(to_hex({number}), 32, '0'), 'hex')",
    ago=lambda seconds: f"now() - interval '1 second' * ({seconds})",
    moment="at",
    never="'infinity'",
    no_bytes="'\\x7b7d'::bytea",
    now_s="extract(epoch FROM now())::bigint",
)

_SQLITE: Final = _Words(
    numbers=lambda rows: (
        f"(WITH RECURSIVE g (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < {rows}) SELECT n FROM g) AS g"
    ),
    text=lambda number: f"CAST({number} AS TEXT)",
    digest=lambda number: f"CAST(printf('%016d', {number}) AS BLOB)",
    ago=lambda seconds: f"CAST(strftime('%s', 'now') AS INTEGER) * 1000 - 1000 * ({seconds})",
    moment="at_ms",
    never=str(2**62),
    no_bytes="CAST('{}' AS BLOB)",
    now_s="CAST(strftime('%s', 'now') AS INTEGER)",
)

_ENVELOPE: Final = '{"content_type": "application/json", "time": null, "epoch": null, "headers": {}}'

#: Over how many seconds rows are spread.
_SPREAD_S: Final = 600_000


def statements(dialect: str, rows: int, *, counts_per_span: int = 1600, consumers: int = 20) -> Iterator[str]:
    """What fills each table. `counts_per_span`: rows of the activity history for one span."""
    d = _POSTGRES if dialect == "postgres" else _SQLITE
    n, at = d.numbers(rows), d.moment
    ago, text, digest = d.ago(f"n % {_SPREAD_S}"), d.text("n"), d.digest("n")
    yield f"""
        INSERT INTO onefold_record (digest, fingerprint, operation, schema_version, status, headers, body, expires_{at})
        SELECT {digest}, {digest}, 'POST /orders', 2, 201, {d.no_bytes}, {d.no_bytes},
            {d.ago(f"n % {_SPREAD_S} - 700000")}
        FROM {n}
    """
    kind = "n % 5"  # published, waiting, delayed, retrying, dead
    yield f"""
        INSERT INTO onefold_outbox (bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers,
            data, written_{at}, due_{at}, started, finished, error, published_{at}, died_{at})
        SELECT n % 64, {d.digest("n % 10000")}, 'e' || {text}, 'shop', 'topic' || {d.text("n % 50")},
            {d.text("n % 10000")}, 1, n, '2026-01-01T00:00:00Z', 'application/json',
            '{{"correlation-id":"c' || {d.text("n / 3")} || '"}}', {d.no_bytes}, {ago},
            CASE {kind} WHEN 2 THEN {d.ago("-n")} WHEN 3 THEN {d.ago("-n")} WHEN 4 THEN {d.never} END,
            CASE WHEN {kind} >= 3 THEN 25 ELSE 0 END, CASE WHEN {kind} >= 3 THEN 25 ELSE 0 END,
            CASE WHEN {kind} >= 3 THEN 'refused' END, CASE {kind} WHEN 0 THEN {ago} END,
            CASE {kind} WHEN 4 THEN {ago} END
        FROM {n}
    """
    yield f"INSERT INTO onefold_stream (stream, epoch, version) SELECT {digest}, 1, 1 FROM {n}"
    consumer = f"'consumer' || {d.text(f'n % {consumers}')}"
    yield f"""
        INSERT INTO onefold_inbox (consumer, message_id, handled_{at}, source)
        SELECT {consumer}, 'e' || {text}, {ago}, 'shop' FROM {n}
    """
    yield f"""
        INSERT INTO onefold_letter (consumer, message_id, state, headers, data, envelope, source, topic, key, reason,
            started, failed, history, created_{at}, due_{at}, died_{at})
        SELECT {consumer}, 'm' || {text}, CASE (n / {consumers}) % 2 WHEN 0 THEN 'dead' ELSE 'waiting' END,
            '{{"correlation-id": "c' || {text} || '"}}', {d.no_bytes}, '{_ENVELOPE}', 'shop', 'topic1', {text},
            'boom', 3, 3, '[]', {ago}, CASE (n / {consumers}) % 2 WHEN 1 THEN {d.ago("-n")} END,
            CASE (n / {consumers}) % 2 WHEN 0 THEN {ago} END
        FROM {n}
    """
    yield f"""
        INSERT INTO onefold_audit (actor, action, consumer, details)
        SELECT 'ann', 'redrive', {consumer}, '{{}}' FROM {n}
    """
    yield f"""
        INSERT INTO onefold_work (digest, kind, operation, fingerprint, fence, lease_ends_{at}, attempts, parked,
            finished_{at}, created_{at}, due_{at}, expires_{at})
        SELECT {digest}, 'request', 'POST /orders', {digest}, 1, {ago}, 3, CASE n % 3 WHEN 0 THEN 'boom' END,
            CASE n % 3 WHEN 1 THEN {ago} END, {ago}, {ago}, {d.ago("-n")}
        FROM {n}
    """
    series = f"n % {counts_per_span}"
    for span_s in SPANS_S:
        yield f"""
            INSERT INTO onefold_activity (span_s, since_s, instrument, labels, process, amount)
            SELECT {span_s}, ({d.now_s} / {span_s} - n / {counts_per_span}) * {span_s}, 'onefold.requests',
                '["POST /route' || {d.text(f"({series}) / 20")} || '", "run"]',
                'process' || {d.text(f"({series}) % 20")}, n
            FROM {d.numbers(rows // len(SPANS_S))}
        """
