"""Claiming an intent's key, and recording its outcome.

Theory of operation. A claim commits, flushed to disk, before its key is used: INSERT, and where the intent is there
already, its row. Of two processes that claim one intent at once, the second waits for the first one's COMMIT and reads
its key. The call then happens with no transaction open. Its end is written lightly: what is lost of it in a power cut
costs one more call under the same key, which the server answers from its memory.

A key is sent only while it is younger than the server's memory (`retention_s`, counted from the claim, before which the
server cannot have seen it). Older and unresolved, the journal does not know whether it happened: an operator decides.
Older and resolved for just as long, the intent is forgotten, and its name is free.

Failure windows. A crash before COMMIT leaves nothing, and nothing was sent. A COMMIT whose answer is lost may leave a
row whose key was never sent: the next claim uses it. A crash after COMMIT leaves an unresolved row: the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from shlex import quote
from typing import Any, Final

from onefold._client.journal.records import (
    NO_FINGERPRINT,
    REASON_CHARS_MAX,
    TARGET_CHARS_MAX,
    ClaimedKey,
    JournalEntry,
    check_fingerprint,
    check_intent,
)
from onefold._client.journal.sql import STATEMENTS
from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import milliseconds, wall_ms
from onefold._kernel.effects import Batch, Boundary, Fetch, Now, Statement
from onefold._kernel.ids import new_id
from onefold._kernel.readable import one_line
from onefold.errors import ConfigurationError, IntentExpired, IntentReused, StoreBusy

#: How long the end of a call waits for the write lock, in all.
BUSY_S_MAX: Final = 5.0

#: How long a claim waits for the write lock, in all, where its call has a longer deadline. SQLite's lock is not fair:
#: under a crowd of processes a claim can be passed over for seconds.
CLAIM_S_MAX: Final = 20.0

#: One claim in so many sweeps, the first one included: also a process that claims once does its part.
SWEEP_EVERY: Final = 64
#: More than one row per claim, or the journal would grow for ever.
SWEEP_ROWS: Final = 2 * SWEEP_EVERY

#: A row can vanish between INSERT and SELECT, if `onefold intents forget` deletes it right then. More often than this
#: it is no coincidence.
_LOOKS_MAX: Final = 3


def _generate_key() -> str:
    """A fresh UUIDv7. Its time is for sorting; how old a key is, the database says."""
    return new_id(wall_ms())


class _BusyWait:
    """How long a journal that is busy is tried again: until the call's deadline, and no longer than so many seconds
    from the first refusal on."""

    __slots__ = ("_give_up_at", "_most_s", "_until")

    def __init__(self, until: float, most_s: float) -> None:
        self._until = until
        self._most_s = most_s
        self._give_up_at: float | None = None

    async def is_over(self) -> bool:
        now = await Now()
        if self._give_up_at is None:
            self._give_up_at = min(self._until, now + self._most_s)
        return now >= self._give_up_at


class Journal:
    """The keys of intents, in one database.

    `retention_s` is how long the server remembers a key, or less: a call that is sent when its key is nearly that old
    must still arrive in time.
    """

    def __init__(
        self, dialect: str, *, retention_s: float = 86_400.0, new_key: Callable[[], str] = _generate_key
    ) -> None:
        if dialect not in STATEMENTS:
            raise ConfigurationError(f"the key journal has no statements for {dialect!r}, only {', '.join(STATEMENTS)}")
        if not 0 < retention_s < math.inf:
            raise ConfigurationError(f"retention_s={retention_s} must be a positive number of seconds")
        self.dialect = dialect
        self.retention_s = retention_s
        self._retention_ms = milliseconds(retention_s)
        self._sql = STATEMENTS[dialect]
        self._new_key = new_key
        self._claims = itertools.count()

    async def claim(
        self, intent: str, fingerprint: bytes, target: str, key: str | None = None, *, until: float = math.inf
    ) -> ClaimedKey:
        """The key to send this call under. It is on disk when this returns. `key` is the one that a new intent gets;
        one that is known keeps the key it has. `until` is the deadline of the call, on the monotonic clock.

        Raises IntentReused where the name stands for another call, IntentExpired where the server may have forgotten
        the key, and StoreError where it could not be written: then nothing may be sent.
        """
        check_intent(intent)
        values = (check_fingerprint(fingerprint), one_line(target, TARGET_CHARS_MAX))
        busy = _BusyWait(until, CLAIM_S_MAX)
        while True:
            try:
                claimed = await with_connection(
                    lambda: self._claim(intent, key or self._new_key(), *values, until=until)
                )
                break
            except StoreBusy:  # nothing was written, and nothing is sent before it is
                if await busy.is_over():
                    raise
        if isinstance(claimed, ClaimedKey):
            return claimed
        raise claimed

    async def claim_ahead(self, intent: str, key: str, *, until: float = math.inf) -> str:
        """The key of an intent, on disk, before the request under it is known."""
        return (await self.claim(intent, NO_FINGERPRINT, "a call that was not made yet", key, until=until)).key

    async def resolve(self, intent: str, status: int, *, until: float = math.inf) -> None:
        """The server gave a final answer. A StoreError here only means that it is not noted: it is tried until then,
        and once in any case."""
        await with_connection(lambda: self._note(self._sql.resolve(intent, status), until))

    async def leave(self, intent: str, reason: str, *, until: float = math.inf) -> None:
        """The call ended without an answer. The intent stays unresolved; `onefold intents` shows the reason."""
        await with_connection(lambda: self._note(self._sql.leave(intent, one_line(reason, REASON_CHARS_MAX)), until))

    async def sweep(self, limit: int = 1000) -> int:
        """Forget intents that were resolved longer ago than the retention; how many. Claims do this by and by."""
        return await with_connection(lambda: _run_change(self._sql.sweep(self._retention_ms, limit)))

    async def _claim(
        self, intent: str, key: str, fingerprint: bytes, target: str, *, until: float
    ) -> ClaimedKey | IntentReused | IntentExpired | StoreBusy:
        sql = self._sql
        insert = sql.insert(intent, key, fingerprint, target)
        await Batch((Boundary.BEGIN, *sql.durable, *await self._bound_lock_waits(until, CLAIM_S_MAX)))
        for _ in range(_LOOKS_MAX):
            # Each alone, a round trip more: the values of a statement that goes alone are bound, those of a batch stand
            # in its text, which a server writes to its log where it refuses it. The key is among them.
            if await Batch((insert,)):
                await Batch((*self._sweep(), Boundary.COMMIT))
                return ClaimedKey(key, known=False)
            if await Batch((sql.forget_old(intent, self._retention_ms),)):
                continue
            if rows := await Fetch(sql.look(intent)):
                entry = _entry(*rows[0])
                refused = self._refusal(intent, fingerprint, target, entry)
                if refused is not None:
                    await Batch((Boundary.ROLLBACK,))
                    return refused
                bound = entry.fingerprint == NO_FINGERPRINT != fingerprint
                update = sql.bind(intent, fingerprint, target) if bound else sql.count_try(intent)
                await Batch((update, Boundary.COMMIT))
                return ClaimedKey(entry.key, known=True)
        await Batch((Boundary.ROLLBACK,))
        return StoreBusy(f"intent {intent!r} was forgotten {_LOOKS_MAX} times while it was being claimed; try again")

    async def _bound_lock_waits(self, until: float, most_s: float) -> tuple[Statement, ...]:
        """What bounds the waits for locks, where a statement would wait for them as long as it takes."""
        if not self._sql.waits_in_statements:
            return ()
        return self._sql.limit_lock_waits(most_s if until == math.inf else min(most_s, until - await Now()))

    def _sweep(self) -> tuple[Statement, ...]:
        """Last in its transaction: on Postgres it holds locks on other intents, and must wait for none."""
        if next(self._claims) % SWEEP_EVERY:
            return ()
        return (self._sql.sweep(self._retention_ms, SWEEP_ROWS),)

    def _refusal(
        self, intent: str, fingerprint: bytes, target: str, entry: JournalEntry
    ) -> IntentReused | IntentExpired | None:
        forget = f"`onefold intents forget {quote(intent)}`"
        if entry.fingerprint != fingerprint and NO_FINGERPRINT not in (entry.fingerprint, fingerprint):
            hidden = ", what is hidden of the path" if "..." in target else ""
            same = f" (the method and the address are the same, so the query{hidden} or the body differs)"
            return IntentReused(
                f"intent {intent!r} names {entry.target}, claimed {entry.age_s:.0f} s ago; it cannot name {target} as "
                f"well{same if entry.target == target else ''}. Give this call an intent of its own, or {forget} if "
                "the first was never meant",
                intent=intent,
                key=entry.key,
            )
        if entry.age_s > self.retention_s:
            answered = "never answered" if entry.status is None else f"answered with {entry.status}"
            return IntentExpired(
                f"intent {intent!r} ({entry.target}) was claimed {entry.age_s:.0f} s ago and {answered}. A server that "
                f"remembers keys for {self.retention_s:g} s may have forgotten it, and would do it a second time: "
                f"nothing was sent. Find out whether it happened (its key is {entry.key}), then {forget}, and call "
                "again only if it did not",
                intent=intent,
                key=entry.key,
            )
        return None

    async def _note(self, change: Statement, until: float) -> None:
        busy = _BusyWait(until, BUSY_S_MAX)
        while True:
            try:
                locked = await self._bound_lock_waits(until, BUSY_S_MAX)
                await Batch((Boundary.BEGIN_LIGHT, *self._sql.light, *locked, change, Boundary.COMMIT))
            except StoreBusy:
                # A light transaction gives up soon, so that its flow may look around; there is nothing to look at here.
                await Batch((Boundary.ROLLBACK,))
                if await busy.is_over():
                    raise
            else:
                return


def _entry(key: str, fingerprint: Any, target: str, age_ms: int, status: int | None) -> JournalEntry:
    return JournalEntry(key, bytes(fingerprint), target, max(0, age_ms) / 1000, status)


async def _run_change(statement: Statement) -> int:
    return await Batch((statement,))
