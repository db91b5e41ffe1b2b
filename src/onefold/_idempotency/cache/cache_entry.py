"""A record as it is written to a server that is not believed: what comes back is known to be ours, or is nothing.

Each entry is authenticated with a secret of the application, and bound to its digest (principal, operation, key), to
the database whose record it is, and to its time. A value that was changed, moved to another key, written by another
application or without the secret, or that is past its time, does not open. An entry that does was committed.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Final

from onefold._idempotency.model import Record

#: Of its form. An entry of another release is not opened: the database is queried.
_FORM: Final = b"\x01"
_MAC_BYTES: Final = 32

#: When it was seen in the database (milliseconds since 1970) and for how long it may be repeated; schema version and
#: status; lengths of fingerprint, operation, headers and body (-1: not kept).
_HEAD: Final = Struct(">QIHHHHIi")

#: By so much the clocks of two hosts may differ. What comes from further ahead is not opened.
SKEW_MS: Final = 2_000


def entry_key(secret: bytes, database: bytes) -> bytes:
    """What the entries of one database are authenticated with."""
    return blake2b(database, digest_size=32, key=blake2b(secret).digest(), person=b"onefold.cache").digest()


def entry_name(digest: bytes, key: bytes) -> str:
    """Where the entry of a digest is. Who reads the server's keys can neither find a request's nor guess at one, and
    applications that share a server do not meet."""
    return blake2b(digest, digest_size=16, key=key, person=b"onefold.name").hexdigest()


def write_entry(record: Record, key: bytes, since_ms: int, lives_ms: int) -> bytes:
    operation = record.operation.encode("utf-8", "surrogatepass")
    lengths = (len(record.fingerprint), len(operation), len(record.headers))
    head = _HEAD.pack(
        since_ms, lives_ms, record.version, record.status, *lengths, -1 if record.body is None else len(record.body)
    )
    content = b"".join((_FORM, head, record.fingerprint, operation, record.headers, record.body or b""))
    return _mac(key, record.digest, content) + content


def read_entry(entry: bytes, digest: bytes, key: bytes, now_ms: int) -> Record | None:
    """The record that was written for this digest with this key; None: it was not, or its time is over."""
    mac, content = entry[:_MAC_BYTES], entry[_MAC_BYTES:]
    if content[:1] != _FORM or not compare_digest(mac, _mac(key, digest, content)):
        return None
    since_ms, lives_ms, version, status, *lengths, body_length = _HEAD.unpack_from(content, 1)
    if not -SKEW_MS <= now_ms - since_ms < lives_ms:
        return None
    parts, at = [], 1 + _HEAD.size
    for length in (*lengths, max(0, body_length)):
        parts.append(content[at : at + length])
        at += length
    fingerprint, operation, headers, body = parts
    name = operation.decode("utf-8", "surrogatepass")
    return Record(digest, fingerprint, name, version, status, headers, None if body_length < 0 else body)


def _mac(key: bytes, digest: bytes, content: bytes) -> bytes:
    mac = blake2b(digest, digest_size=_MAC_BYTES, key=key)  # a digest has one length: nothing moves between the two
    mac.update(content)
    return mac.digest()
