"""Whether a stored record is of the request at hand: compared the way the record was made.

A route may change its strategy, a ring its keys, a release its formula; a retry of what was stored before is a retry
all the same. So the record names its form, that form is made of the request too, and both are compared under each key
the record can have been made with. Records of onefold 0.1 do not name their form: any that agrees is the one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from onefold._idempotency.fingerprint import (
    FINGERPRINT_BYTES,
    RequestContent,
    Strategy,
    canonical_json,
    earlier_fingerprint,
    find_strategy,
    form_of,
    hash_content,
    is_ours,
    raw_bytes,
)
from onefold._idempotency.model import SCHEMA_VERSION, Ask, InFlight, Mismatch, Record, Replay, Scope
from onefold.errors import StoreError


class Compared(NamedTuple):
    """What a record is compared with."""

    content: RequestContent
    fingerprint: bytes
    """The request's own."""
    key: str
    scopes: Mapping[bytes, Scope]
    """What the request may be stored under, by digest."""
    strategies: tuple[Strategy, ...]
    """The route's, today's first."""
    peppers: tuple[bytes, ...] = ()
    open_headers: Callable[[Record], object] | None = None
    """Raises where a record was encrypted with a key that is not known."""


def is_same_request(compared: Compared, record: Record) -> bool:
    """Whether a record is of the request at hand."""
    if record.fingerprint == compared.fingerprint:
        return True
    return _agrees_in_its_form(compared, record) if record.version > 1 else _agrees_in_any_form(compared, record)


def _agrees_in_its_form(compared: Compared, record: Record) -> bool:
    printed, name = record.fingerprint[:FINGERPRINT_BYTES], record.fingerprint[FINGERPRINT_BYTES:]
    strategy = find_strategy(name, compared.strategies)
    if strategy is None:
        raise StoreError(
            f"a record of {record.operation} was compared by {name!r}, a strategy its route does not have now; "
            "list it in fingerprint_before=(named_strategy(...),) until one retention after the change"
        )
    form = form_of(strategy, compared.content)
    scope = compared.scopes[record.digest]
    for pepper in (*compared.peppers, b""):
        key = scope.fingerprint_key(compared.key, pepper)
        if hash_content(compared.content, form, ours=is_ours(strategy), key=key) == printed:
            return True
    # Another request; unless its pepper went with a key that left the ring too early: then nothing is known.
    if compared.open_headers is not None:
        compared.open_headers(record)
    return False


def _agrees_in_any_form(compared: Compared, record: Record) -> bool:
    return any(
        earlier_fingerprint(compared.content, strategy, key=record.digest) == record.fingerprint
        for strategy in dict.fromkeys((*compared.strategies, canonical_json, raw_bytes))
    )


def judge_records(ask: Ask, records: Sequence[Record]) -> Replay | Mismatch | InFlight | None:
    """What the live records of an intent mean for a request. None: there are none."""
    for record in records:
        if record.version > SCHEMA_VERSION:
            raise StoreError(
                f"a record of {ask.operation} was written by a newer onefold (schema version {record.version}, this "
                f"one reads up to {SCHEMA_VERSION}); finish the roll-out, or roll back the newer release"
            )
    if ask.unmounted is not None:
        shared = [record for record in records if record.digest == ask.unmounted]
        records = [record for record in records if record.digest != ask.unmounted]
        if not records:
            return _judge_unmounted(ask, shared)
    done = [record for record in records if not record.is_signpost]
    if not done:
        # Only a signpost: a deploy with another `operation` has done it, and only its processes know how it ended.
        return InFlight() if records else None
    record = done[0] if len(done) == 1 else min(done, key=_by_name(ask))
    same = record.fingerprint == ask.fingerprint if ask.same is None else ask.same(record)
    return Replay(record) if same else Mismatch()


def _judge_unmounted(ask: Ask, records: Sequence[Record]) -> Replay | InFlight | None:
    """What a record of onefold 0.1 means that may be of another mount or host. None: it is another's, or there is none.

    Where nothing shows which, the answer may be another application's and the effect may be this one's: the request
    is held off until the record expires.
    """
    for record in records:
        if record.version == 1 and ask.same is not None and ask.same(record):
            return Replay(record) if ask.distinguishes_mounts else InFlight()
    return None


def _by_name(ask: Ask) -> Callable[[Record], int]:
    """The intent's own record before those of earlier names."""
    return lambda record: ask.digests.index(record.digest)
