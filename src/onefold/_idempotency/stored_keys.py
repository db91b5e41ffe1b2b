"""Keys as people look for them: what is stored under a name, what holds it, and erasing it, with a line in the audit.

A key is found by its digest, from which neither the key nor the principal can be read. One request may have several
names (see `Ask.earlier`): a signpost that stays behind after an erasure would hold its retries off until it expires, so
all names go together, also one that was not given.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from onefold._idempotency.model import DIGEST_BYTES, SIGNPOST_STATUS, SIGNPOSTS_MAX, Record
from onefold._idempotency.sql.stored_keys import STATEMENTS, KeyStatements
from onefold._idempotency.store import record_of
from onefold._kernel.audit import note_of
from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

KEYS_MAX: Final = 1000

#: Names of one request: its own, and those of earlier releases and deploys.
NAMES_MAX: Final = 8

_UNSEALED: Final = b"\x00"

KeyState: TypeAlias = Literal["done", "elsewhere", "expired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """What is stored under one name of a request."""

    id: str
    """Its digest."""
    state: KeyState
    """Elsewhere: a deploy whose operation has another name has the answer. Expired: it is deleted by the next reap."""
    operation: str
    status: int
    version: int
    headers_bytes: int
    body_bytes: int | None
    """None: the body was too large to be kept."""
    is_sealed: bool
    expires_ms: int
    now_ms: int
    place: int
    """Its exact end, which distinguishes it from what is stored under the same name later."""

    @property
    def stamp(self) -> str:
        """What a person who decides about this record has seen."""
        return f"{self.id}-{self.place}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHolder:
    """A request that holds the lock of a key at this moment. What is None is not known."""

    pid: int | None
    """Of its session, at a server of Postgres."""
    since_ms: int | None
    application: str | None
    now_ms: int
    has_lease: bool
    """Whether the database ends it after the route's lease_s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """Stored answers, those that are kept longest first."""

    keys: tuple[KeyView, ...]
    after: str | None
    """What to give for the next page; None: there is none."""


def read_digest(text: str) -> bytes | None:
    """The digest that an id stands for; None: it is not an id."""
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES and text == digest.hex() else None


async def list_keys(dialect: str, *, after: str | None = None, limit: int = 50) -> KeyPage:
    """One page of what is stored."""
    require("limit", limit, least=1, most=KEYS_MAX)
    statement = STATEMENTS[dialect].page(_read_place(after), limit + 1)
    rows = await with_connection(functools.partial(fetch_rows, statement))
    keys = tuple(_view(*row) for row in rows[:limit])
    more = len(rows) > limit
    return KeyPage(keys=keys, after=f"{keys[-1].place}-{keys[-1].id}" if more else None)


async def find_keys(dialect: str, digests: Sequence[bytes]) -> tuple[KeyView, ...]:
    """What is stored under these names, in their order."""
    sql = STATEMENTS[dialect]

    async def work() -> tuple[KeyView, ...]:
        return tuple([_view(*row) for digest in digests[:NAMES_MAX] for row in await Fetch(sql.one(digest))])

    return await with_connection(work)


async def find_holder(dialect: str, digests: Sequence[bytes]) -> KeyHolder | None:
    """The request that runs under one of these names, in a transaction; None: there is none."""
    sql = STATEMENTS[dialect]

    async def work() -> KeyHolder | None:
        for digest in digests[:NAMES_MAX]:
            for pid, since_ms, application, now_ms in await Fetch(sql.holders(digest)):
                return KeyHolder(
                    pid=pid,
                    since_ms=since_ms,
                    application=application or None,
                    now_ms=now_ms,
                    has_lease=sql.has_lease,
                )
        return None

    return await with_connection(work)


async def find_head(dialect: str, digest: bytes) -> Record | None:
    """The record without its body: what it was made in, and no word of its answer, is shown of it."""
    rows = await with_connection(functools.partial(fetch_rows, STATEMENTS[dialect].head(digest)))
    return record_of(rows[0]) if rows else None


async def show_answer(dialect: str, digest: bytes, *, actor: str) -> Record | None:
    """The record with the stored answer. That it was looked at is written into the audit."""
    sql = STATEMENTS[dialect]
    note_of(dialect, actor=actor, action="keys show", details={})  # a name that is none is refused before anything

    async def work() -> Record | None:
        await Batch((Boundary.BEGIN,))
        rows = await Fetch(sql.answer(digest))
        if not rows:
            await Batch((Boundary.ROLLBACK,))
            return None
        record = record_of(rows[0])
        details = {"key": digest.hex(), "operation": record.operation, "status": record.status}
        note = note_of(dialect, actor=actor, action="keys show", details=details)
        await Batch((note, Boundary.COMMIT))
        return record

    return await with_connection(work)


async def erase(
    dialect: str, digests: Sequence[bytes], *, actor: str, why: str, seen: Collection[str] | None = None
) -> tuple[KeyView, ...]:
    """Forget what is stored under all names of a request: a retry with its key is a new request, and runs. What was
    erased; nothing, and no line in the audit, where nothing is stored, or another record than those `seen` (their
    stamps). A form that is sent twice must not erase what the retry after the first has stored: that would run a third
    time."""
    if not why.strip():
        raise ConfigurationError("erasing a key needs a reason, for the audit")
    sql, names = STATEMENTS[dialect], digests[:NAMES_MAX]
    note_of(dialect, actor=actor, action="keys erase", details={}, why=why)

    async def work() -> tuple[KeyView, ...]:
        await Batch((Boundary.BEGIN,))
        keys = tuple([_view(*row) for digest in names for row in await Fetch(sql.one(digest))])
        is_current = seen is None or all(key.stamp in seen for key in keys)
        ends = [(bytes.fromhex(key.id), key.place) for key in keys]
        ends += [(signpost, keys[0].place) for signpost in await _find_signposts(sql, keys)]
        # Another operator who is quicker leaves nothing to delete here: only one of them has erased it.
        erased = [row for digest, place in ends if is_current for row in await Fetch(sql.erase(digest, place))]
        if not erased:
            await Batch((Boundary.ROLLBACK,))
            return ()
        details: dict[str, Any] = {
            "keys": [key.id for key in keys],
            "operation": next((key.operation for key in keys if key.operation), ""),
            "status": next((key.status for key in keys if key.state != "elsewhere"), None),
        }
        note = note_of(dialect, actor=actor, action="keys erase", details=details, why=why)
        await Batch((note, Boundary.COMMIT))
        return keys

    return await with_connection(work)


async def _find_signposts(sql: KeyStatements, keys: Sequence[KeyView]) -> tuple[bytes, ...]:
    """The signposts of a record, where their names were not among those that were given. They were stored by the
    statement that stored the record; where others were stored at that very moment, they cannot be distinguished from
    theirs, and stay."""
    done = [key for key in keys if key.status != SIGNPOST_STATUS]
    if len(done) != 1 or len(keys) != 1:
        return ()
    beside = await Fetch(sql.beside(bytes.fromhex(done[0].id)))
    signposts = [bytes(digest) for digest, status in beside if status == SIGNPOST_STATUS]
    return tuple(signposts) if len(beside) == 1 + len(signposts) <= 1 + SIGNPOSTS_MAX else ()


def _view(*row: Any) -> KeyView:
    digest, operation, status, version, headers_bytes, body_bytes, tag, place, expires_ms, now_ms = row
    state: KeyState = "elsewhere" if status == SIGNPOST_STATUS else "done"
    return KeyView(
        id=bytes(digest).hex(),
        state="expired" if expires_ms <= now_ms else state,
        operation=operation,
        status=status,
        version=version,
        headers_bytes=headers_bytes,
        body_bytes=None if body_bytes is None else body_bytes - len(_UNSEALED),  # the mark of an answer's form is ours
        is_sealed=bool(tag) and bytes(tag) != _UNSEALED,
        expires_ms=expires_ms,
        now_ms=now_ms,
        place=place,
    )


def _read_place(after: str | None) -> tuple[int, bytes] | None:
    if after is None:
        return None
    place, _, name = after.partition("-")
    digest = read_digest(name)
    if not place.isascii() or not place.isdecimal() or len(place) > 18 or digest is None:
        raise ConfigurationError(
            f"after={after[:100]!r} is not a position in a list of keys: take the one that the page before ended with"
        )
    return int(place), digest
