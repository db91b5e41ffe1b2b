"""Whether a stored record is of the request at hand: compared the way the record was made.

A route may change its strategy, a ring its keys, a release its formula; a retry of what was stored before is a retry
all the same. So the record names its form, that form is made of the request too, and both are compared under each key
the record can have been made with. Records of onefold 0.1 do not name their form: any that agrees is the one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onefold._idempotency.fingerprint import (
    FINGERPRINT_BYTES,
    Asked,
    Strategy,
    canonical_json,
    earlier_fingerprint,
    form_of,
    hashed,
    is_ours,
    raw_bytes,
    strategy_named,
)
from onefold._idempotency.model import Record, Scope
from onefold.errors import StoreError


class Judge:
    """Knows one request, and says of records whether they are of the same."""

    __slots__ = ("_asked", "_fingerprint", "_key", "_open_headers", "_peppers", "_scopes", "_strategies")

    def __init__(
        self,
        asked: Asked,
        fingerprint: bytes,
        *,
        key: str,
        scopes: Mapping[bytes, Scope],
        strategies: tuple[Strategy, ...],
        peppers: tuple[bytes, ...] = (),
        open_headers: Callable[[Record], object] | None = None,
    ) -> None:
        """`fingerprint` is the request's own, `scopes` are those it may be stored under, by digest, `strategies` the
        route's, today's first. `open_headers` raises where a record was sealed with a key that is not known."""
        self._asked = asked
        self._fingerprint = fingerprint
        self._key = key
        self._scopes = scopes
        self._strategies = strategies
        self._peppers = peppers
        self._open_headers = open_headers

    def __call__(self, record: Record) -> bool:
        if record.fingerprint == self._fingerprint:
            return True
        return self._is_named(record) if record.version > 1 else self._is_any(record)

    def _is_named(self, record: Record) -> bool:
        printed, name = record.fingerprint[:FINGERPRINT_BYTES], record.fingerprint[FINGERPRINT_BYTES:]
        strategy = strategy_named(name, self._strategies)
        if strategy is None:
            raise StoreError(
                f"a record of {record.operation} was compared by {name!r}, a strategy its route does not have now; "
                "list it in fingerprint_before=(named_strategy(...),) until one retention after the change"
            )
        form = form_of(strategy, self._asked)
        scope = self._scopes[record.digest]
        for pepper in (*self._peppers, b""):
            key = scope.fingerprint_key(self._key, pepper)
            if hashed(self._asked, form, ours=is_ours(strategy), key=key) == printed:
                return True
        # Another request; unless its pepper went with a key that left the ring too early: then nothing is known.
        if self._open_headers is not None:
            self._open_headers(record)
        return False

    def _is_any(self, record: Record) -> bool:
        return any(
            earlier_fingerprint(self._asked, strategy, key=record.digest) == record.fingerprint
            for strategy in dict.fromkeys((*self._strategies, canonical_json, raw_bytes))
        )
