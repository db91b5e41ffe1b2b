"""What a keyed request is, what can become of it, and what is kept of it.

A key is in one of these states, seen from a request that brings it:

    state of the key          same fingerprint            other fingerprint
    ------------------------  --------------------------  ---------------------------
    never seen                Run                         Run
    being worked on           InFlight                    Mismatch
    lease ran out (SQLite)    Run (takes over)            Mismatch
    done                      Replay                      Mismatch
    done, past retention      Run, or Expired (refuse)    Run, or Expired (refuse)
    older than retention      Expired (refuse only)       Expired (refuse only)

A request that got Run ends in exactly one of two ways: it is settled (key, response and business rows commit
together) or released (nothing of it remains).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple, TypeAlias

from onefold._kernel.clock import milliseconds

# What every request makes is a NamedTuple: as immutable as a frozen dataclass, at a quarter of the price.

#: Version of the stored form. Readers accept every version up to this one and refuse newer ones by name.
SCHEMA_VERSION = 1

DIGEST_BYTES = 16

_64_BITS = Struct(">q")

_NEVER_LATE = 2**62


class Scope(NamedTuple):
    """Who asks for what: keys of different scopes never meet."""

    principal: str
    operation: str
    """Method and route template, as in `POST /payments/{id}/refunds`."""

    def digest(self, key: str) -> bytes:
        """The name of the intent: primary key of its record and source of its lock ids."""
        # Lengths first: no two scopes and keys are hashed alike. A principal may hold undecodable bytes as surrogates.
        framed = f"{len(self.principal)}:{len(self.operation)}:{self.principal}{self.operation}{key}"
        return blake2b(framed.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES, person=b"onefold").digest()


class Ask(NamedTuple):
    """One request's claim on its key."""

    digest: bytes
    fingerprint: bytes
    operation: str
    lease_s: float
    retention_s: float
    key_ms: int | None = None
    """When the key was minted (UUIDv7), for routes that refuse late retries; None lets expired keys run anew."""

    @property
    def refuses_late(self) -> bool:
        return self.key_ms is not None

    @property
    def late_after_ms(self) -> int:
        """From when on, in milliseconds since 1970, the key is too old to be run."""
        return _NEVER_LATE if self.key_ms is None else self.key_ms + milliseconds(self.retention_s)

    @property
    def key_lock(self) -> int:
        """The lock every request with this key must hold to run."""
        return key_lock(self.digest)

    @property
    def request_lock(self) -> int:
        """The lock only requests with this key and this payload compete for."""
        # The fingerprint is keyed with the digest: its bits belong to this key and this payload alone.
        return _lock_id(self.fingerprint)


class Answer(NamedTuple):
    """The part of a response that is stored: what a replay repeats byte for byte."""

    status: int
    headers: bytes
    body: bytes | None
    """None when the body was too large to keep: the record is a tombstone."""


@dataclass(frozen=True, slots=True)
class Run:
    """This request runs, and nobody else does. `fence` makes it harmless should its lease run out."""

    fence: int = 0


@dataclass(frozen=True, slots=True)
class Replay:
    """Already done."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class InFlight:
    """The same request is being worked on."""

    lease_left_s: float | None = None


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key names another request."""


@dataclass(frozen=True, slots=True)
class Expired:
    """Too late: the record is past its retention, or the key is older than any record would be."""


Claim: TypeAlias = Run | Replay | InFlight | Mismatch | Expired


@dataclass(frozen=True, slots=True)
class Status:
    """What became of a key: unknown, in flight, or done."""

    state: str
    status: int | None = None
    expires_at: str | None = None


def key_lock(digest: bytes) -> int:
    """The id of the lock that whoever runs a key holds."""
    return _lock_id(digest)


def _lock_id(hashed: bytes) -> int:
    # 64 bits of a hash: no two of our locks, nor ours and the application's, meet by accident. (A class of 32 bits
    # and an id of 32 bits would meet about once in a day of heavy traffic: a false 422.)
    number: int = _64_BITS.unpack_from(hashed)[0]
    return number
