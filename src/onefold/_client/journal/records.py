"""What the journal holds and what it takes: values that are checked before they get near a database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onefold.errors import ConfigurationError, IntentInvalid, ProgrammerError

INTENT_CHARS_MAX: Final = 255
TARGET_CHARS_MAX: Final = 2000
REASON_CHARS_MAX: Final = 500
FINGERPRINT_BYTES: Final = range(16, 33)
#: Of an intent that was claimed before the request was known.
NO_FINGERPRINT: Final = bytes(16)
LISTED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class ClaimedKey:
    """What a call's key came to."""

    key: str
    known: bool
    """The intent was in the journal before this call: a process may have died in the middle of it."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """An intent's row, as a claim finds it."""

    key: str
    fingerprint: bytes
    target: str
    age_s: float
    status: int | None
    """What the server finally answered; None: it did not, or its answer was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentView:
    """An intent as people see it."""

    position: int
    """Where the next page begins: behind this."""
    intent: str
    key: str
    target: str
    tries: int
    """How often it was claimed. Retries within one call are not counted."""
    reason: str | None
    """Why the last call ended without an answer. None also where its process died."""
    status: int | None
    age_s: float
    created_ms: int
    resolved_ms: int | None


@dataclass(frozen=True, slots=True)
class IntentCounts:
    """How many intents there are. Counting stops at a limit: then there are at least so many."""

    unresolved: int
    resolved: int
    oldest_s: float | None
    """Of the unresolved."""
    cut: bool


def check_intent(intent: str) -> str:
    """The name, if a person can read it in a list and type it."""
    if not isinstance(intent, str):
        raise IntentInvalid(f"an intent is a text, not {type(intent).__name__}: {intent!r}")
    if not intent or len(intent) > INTENT_CHARS_MAX:
        raise IntentInvalid(
            f"intent {intent[:40]!r} has {len(intent)} characters, must have 1 to {INTENT_CHARS_MAX}; "
            "name what is meant, for example pay:ord-42"
        )
    if not intent.isprintable():
        raise IntentInvalid(f"intent {intent!r} has characters that cannot be printed; leave them out")
    return intent


def check_fingerprint(fingerprint: bytes) -> bytes:
    """The hash, if it is long enough to distinguish calls."""
    if len(fingerprint) not in FINGERPRINT_BYTES:
        raise ProgrammerError(
            f"a fingerprint of {len(fingerprint)} bytes; it is a hash of "
            f"{FINGERPRINT_BYTES.start} to {FINGERPRINT_BYTES.stop - 1}"
        )
    return bytes(fingerprint)


def check_limit(limit: int) -> int:
    if not 1 <= limit <= LISTED_MAX:
        raise ConfigurationError(f"limit={limit} must be between 1 and {LISTED_MAX}")
    return limit
