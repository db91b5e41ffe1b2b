"""Keyed requests: their states, and what is stored of them.

A key is in one of these states, seen from a request that brings it:

    state of the key          same fingerprint            other fingerprint
    ------------------------  --------------------------  ---------------------------
    never seen                Run                         Run
    being worked on           InFlight                    Mismatch, or InFlight where that is not known yet
    done                      Replay                      Mismatch
    done, past retention      Run, or Expired (refuse)    Run, or Expired (refuse)
    older than retention      Expired (refuse only)       Expired (refuse only)

A request that got Run ends in exactly one of two ways: it is settled (key, response and business rows commit
together) or released (nothing of it remains).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from struct import Struct, unpack
from typing import NamedTuple, TypeAlias

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Isolation

# What every request makes is a NamedTuple: as immutable as a frozen dataclass, at a quarter of the price.

#: Version of the stored form. Readers accept every version up to this one and refuse newer ones by name.
#: 1: onefold 0.1. Operations with parameter names, a bare fingerprint keyed with the digest, answers bound to that.
#: 2: operations without them, a fingerprint with a derived key and the name of its form, answers bound to their row.
SCHEMA_VERSION = 2

#: What a signpost has for a status: see `Record.is_signpost`.
SIGNPOST_STATUS = 0

#: So many belong to one record at most.
SIGNPOSTS_MAX = 2

DIGEST_BYTES = 16
FINGERPRINT_KEY_BYTES = 32

_digest = partial(blake2b, digest_size=DIGEST_BYTES, person=b"onefold")
_fingerprint_key = partial(blake2b, digest_size=FINGERPRINT_KEY_BYTES, person=b"onefold.print")

_64_BITS = Struct(">q")

_NEVER_LATE = 2**62


class Scope(NamedTuple):
    """The principal and the operation of a request: keys of different scopes never meet."""

    principal: str
    operation: str
    """Method and route template without the names of its parameters, as in `POST /payments/{}/refunds`."""

    def digest(self, key: str) -> bytes:
        """The name of the intent: primary key of its record and source of its lock ids."""
        return _digest(self._frame(key)).digest()

    def fingerprint_key(self, key: str, pepper: bytes = b"") -> bytes:
        """What the intent's fingerprint is keyed with. It is stored nowhere: a reader of the record has the digest,
        and the digest reveals neither this nor the key. Where client keys can be guessed, a secret pepper cannot."""
        return _fingerprint_key(self._frame(key), key=pepper).digest()

    def derive(self, key: str) -> tuple[bytes, bytes]:
        """Both, without a pepper: what every request needs."""
        framed = self._frame(key)
        return _digest(framed).digest(), _fingerprint_key(framed).digest()

    def _frame(self, key: str) -> bytes:
        # Lengths first: no two scopes and keys are hashed alike. A principal may hold undecodable bytes as surrogates.
        framed = f"{len(self.principal)}:{len(self.operation)}:{self.principal}{self.operation}{key}"
        return framed.encode("utf-8", "surrogatepass")


class Record(NamedTuple):
    """A stored row, as far as a request is concerned with it."""

    digest: bytes
    fingerprint: bytes
    operation: str
    version: int
    status: int
    headers: bytes
    body: bytes | None
    left_ms: int = 0
    """How much longer it was kept, by the database's clock, when it was read; 0: that was not queried."""

    @property
    def answer(self) -> Answer:
        return Answer(self.status, self.headers, self.body)

    @property
    def is_signpost(self) -> bool:
        """Whether it only keeps the place where a release or deploy before looks, of a record that is elsewhere."""
        return self.status == SIGNPOST_STATUS


class Ask(NamedTuple):
    """One request's claim on its key."""

    digest: bytes
    fingerprint: bytes
    operation: str
    lease_s: float
    retention_s: float
    key_ms: int | None = None
    """When the key was generated (UUIDv7), for routes that refuse late retries; None lets expired keys run anew."""
    earlier: tuple[bytes, ...] = ()
    """What a release or deploy before calls the same intent: three at most."""
    unmounted: bytes | None = None
    """What onefold 0.1 calls the intent, and calls those of other mounts and hosts too: looked at, never written."""
    distinguishes_mounts: bool = False
    """Whether such a record differs from another mount's; where not, it is neither replayed nor run again."""
    make_request_locks: Callable[[], tuple[int, ...]] | None = None
    """Gives `request_locks`, which a replay does without; None: the fingerprint is the only one."""
    same: Callable[[Record], bool] | None = None
    """Whether a record is of the same request, by the strategy it was made with; None: if the fingerprints agree."""
    distinguishes_payloads: bool = True
    """False where requests in flight with the same and with another payload look alike: both are in flight then."""
    isolation: Isolation | None = None
    """The isolation level that the route sets; None: the one it would have without us."""
    work_lease_s: float | None = None
    """Of requests in recorded steps: how long the process may be silent. None: as long as works have by default."""
    signposts: tuple[bytes, ...] = ()
    """Where a settle leaves a signpost, among `earlier`: the first, where 0.1 looks, and where a deploy before does."""

    @property
    def names(self) -> tuple[bytes, ...]:
        """The request's own names: what it is locked by. The name that all mounts share is not among them: requests
        below different mounts do not hold each other off."""
        return (self.digest, *self.earlier)

    @property
    def digests(self) -> tuple[bytes, ...]:
        """All that the intent may be stored under."""
        own = (self.digest, *self.earlier)
        return own if self.unmounted is None else (*own, self.unmounted)

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
    def request_locks(self) -> tuple[int, ...]:
        """What only requests with this key and this payload compete for: ours first, then what those before hold."""
        # The fingerprint's key is derived from this key and its scope: its bits belong to them and this payload alone.
        return (lock_id(self.fingerprint),) if self.make_request_locks is None else self.make_request_locks()


class Answer(NamedTuple):
    """The part of a response that is stored: what a replay repeats byte for byte."""

    status: int
    headers: bytes
    body: bytes | None
    """None when the body was too large to keep: the record is a tombstone."""


@dataclass(frozen=True, slots=True)
class Run:
    """This request runs, and no other with its key. `reserved` says that its transaction is stricter than READ
    COMMITTED, and has the row of its record already."""

    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """Already done."""

    record: Record


@dataclass(frozen=True, slots=True)
class InFlight:
    """The same request is being worked on."""

    ask_again_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key names another request."""


@dataclass(frozen=True, slots=True)
class Expired:
    """Too late: the record is past its retention, or the key is older than any record would be."""


Claim: TypeAlias = Run | Replay | InFlight | Mismatch | Expired


def rows_kept(lost_to: Claim | None) -> bool | None:
    """Whether a settle that ended like this kept the handler's rows. None: not known."""
    return None if isinstance(lost_to, InFlight) else lost_to is None


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a key: unknown, in flight, or done."""

    state: str
    status: int | None = None
    expires_at: str | None = None


def key_lock(digest: bytes) -> int:
    """The id of the lock that the request which runs a key holds."""
    return lock_id(digest)


def lock_ids(hashes: Sequence[bytes]) -> tuple[int, ...]:
    """The ids of several locks, each from a hash of 16 bytes."""
    return unpack(">" + "q8x" * len(hashes), b"".join(hashes))


def lock_id(hashed: bytes) -> int:
    # 64 bits of a hash: no two of our locks, nor ours and the application's, meet by accident. (A class of 32 bits
    # and an id of 32 bits would meet about once in a day of heavy traffic: a false 422.)
    number: int = _64_BITS.unpack_from(hashed)[0]
    return number
