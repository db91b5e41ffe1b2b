"""Queries of operators on the journal: calls without a known end, and forgetting one on purpose."""

from __future__ import annotations

from typing import Any, Final

from onefold._client.journal.records import IntentCounts, IntentView, check_limit
from onefold._client.journal.sql import STATEMENTS
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Fetch

COUNTED_MAX: Final = 10_000


async def intents(
    dialect: str, unresolved_only: bool = True, limit: int = 100, after: int | None = None
) -> list[IntentView]:
    """The oldest first, from behind the position `after` on."""
    statement = STATEMENTS[dialect].list_page(check_limit(limit), after, unresolved_only=unresolved_only)

    async def work() -> list[IntentView]:
        return [_view(*row) for row in await Fetch(statement)]

    return await with_connection(work)


async def intent_of(dialect: str, intent: str) -> IntentView | None:
    """One intent."""

    async def work() -> IntentView | None:
        rows = await Fetch(STATEMENTS[dialect].one(intent))
        return _view(*rows[0]) if rows else None

    return await with_connection(work)


async def counts(dialect: str, counted_max: int = COUNTED_MAX) -> IntentCounts:
    """How many there are, without reading a whole table."""

    async def work() -> IntentCounts:
        [(unresolved, resolved, oldest_ms)] = await Fetch(STATEMENTS[dialect].counts(counted_max))
        oldest_s = None if oldest_ms is None else max(0, oldest_ms) / 1000
        return IntentCounts(unresolved, resolved, oldest_s, cut=max(unresolved, resolved) >= counted_max)

    return await with_connection(work)


async def forget(dialect: str, intent: str) -> bool:
    """Delete an intent, resolved or not; whether it was there. The next claim of its name gets a new key, so what did
    happen happens again: find out first whether it did."""

    async def work() -> bool:
        return await Batch((STATEMENTS[dialect].forget(intent),)) > 0

    return await with_connection(work)


def _view(*row: Any) -> IntentView:
    position, intent, key, target, tries, reason, status, age_ms, created_ms, resolved_ms = row
    return IntentView(
        position=position,
        intent=intent,
        key=key,
        target=target,
        tries=tries,
        reason=reason,
        status=status,
        age_s=max(0, age_ms) / 1000,
        created_ms=created_ms,
        resolved_ms=resolved_ms,
    )
