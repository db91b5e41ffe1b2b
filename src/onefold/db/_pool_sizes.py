"""How many connections a process opens at most, by the pool or the engine that it was given."""

from __future__ import annotations

from typing import Any


def find_pool_size(database: object) -> int | None:
    """None where there is no limit, or none that can be seen."""
    engine = getattr(database, "_engine", None)
    if engine is not None:
        pool = engine.pool
        overflow = getattr(pool, "_max_overflow", None)
        return pool.size() + overflow if isinstance(overflow, int) and overflow >= 0 else None
    pool = getattr(database, "_pool", None)
    return _read(pool, "get_max_size") or _read(pool, "max_size")


def _read(pool: Any, name: str) -> int | None:
    found = getattr(pool, name, None)
    value = found() if callable(found) else found
    return value if isinstance(value, int) else None
