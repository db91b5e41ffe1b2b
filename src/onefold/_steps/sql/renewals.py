"""Renewing the leases of many works in one statement.

A work whose row is locked is left out, and not waited for: it is in a phase, whose end renews its lease, or a process
is taking it over. `ours` then distinguishes the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Statement, Value
from onefold._steps.model import Held

#: Works in one statement.
RENEWED_AT_ONCE: Final = 64


class _Dialect(Protocol):
    @property
    def lock_free(self) -> str: ...
    def text(self, sql: str) -> str: ...
    def in_ms(self, ms: str) -> str: ...


class Renewals:
    """The statements of one dialect."""

    def __init__(self, d: _Dialect) -> None:
        self._d = d
        self._cache: dict[tuple[str, int], str] = {}
        self._renew = f"""
            UPDATE onefold_work SET lease_ends_at = {d.in_ms("$1::bigint")}
            WHERE digest IN (SELECT digest FROM onefold_work WHERE {{works}} {d.lock_free})
            RETURNING digest
        """
        self._ours = "SELECT digest FROM onefold_work WHERE {works}"

    def renew(self, works: Sequence[Held]) -> Statement:
        """The digests of those that were renewed. All of them have one lease."""
        lease_ms = milliseconds(works[0].lease_s)
        return Statement(self._for_works(self._renew, len(works), first=2), (lease_ms, *_pairs(works)))

    def ours(self, works: Sequence[Held]) -> Statement:
        """The digests of those that have still the fence they had."""
        return Statement(self._for_works(self._ours, len(works), first=1), _pairs(works))

    def _for_works(self, sql: str, count: int, *, first: int) -> str:
        size = _size(count)
        if (sql, size) not in self._cache:
            pairs = [
                f"(digest = ${first + 2 * place}::bytea AND fence = ${first + 2 * place + 1}::bigint)"
                for place in range(size)
            ]
            self._cache[sql, size] = self._d.text(sql.replace("{works}", f"({' OR '.join(pairs)})"))
        return self._cache[sql, size]


def _size(count: int) -> int:
    """Powers of two: few statements for a driver to prepare. The last work stands in the places that are left."""
    return 1 << (count - 1).bit_length()


def _pairs(works: Sequence[Held]) -> tuple[Value, ...]:
    filled = [*works, *[works[-1]] * (_size(len(works)) - len(works))]
    return tuple(value for work in filled for value in (work.digest, work.fence))
