"""Keys made from durable data: the same parts give the same key, in every process and every release.

Where the data that a call is made from (an order's id, the number of the attempt) is durable, no journal is needed: the
key can be made again. It is a UUIDv8 (RFC 9562, 5.8), because some servers take nothing but UUIDs.

Invariant: two lists of parts have the same key only if they are the same list. Every part is written with its kind and
its length in front, so neither ("a", "bc") and ("ab", "c") nor 1 and "1" can be confused. What may be written
differently next time (a float, a naive time, an object) is refused.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from hashlib import blake2b
from typing import Final, TypeAlias
from uuid import UUID

from onefold.errors import KeyNotDerivable

Part: TypeAlias = str | int | bytes | UUID | date

_LENGTH_BYTES: Final = 8

#: Keeps these keys apart from other hashes of the same data. Like all of this module's encoding, it never changes.
_PERSON: Final = b"onefold derive"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_VERSION_8: Final = 0x8 << 76
_VARIANT: Final = 0b10 << 62
_FREE_BITS: Final = ~(0xF << 76 | 0b11 << 62)


def derive(*parts: Part) -> str:
    """The key that these parts stand for: `derive("pay", order_id, attempt)`.

    A part is a str, an int, a bool, bytes, a UUID, a date, or a datetime with a time zone. An id is another part as a
    UUID than as text: keep to one of them.
    """
    if not parts:
        raise KeyNotDerivable("derive() needs at least one part: without any, every call would have the same key")
    hashed = hash_parts(parts, blake2b(digest_size=16, person=_PERSON), "derive()")
    return str(UUID(int=int.from_bytes(hashed.digest(), "big") & _FREE_BITS | _VERSION_8 | _VARIANT))


def hash_parts(parts: tuple[Part, ...], hashed: blake2b, where: str) -> blake2b:
    """The hash, with the parts in it. `where` is what their errors name."""
    for number, part in enumerate(parts, start=1):
        kind, content = _encode(where, number, part)
        hashed.update(kind + len(content).to_bytes(_LENGTH_BYTES, "big") + content)
    return hashed


def _encode(where: str, number: int, part: object) -> tuple[bytes, bytes]:
    """A part's kind and its one spelling. Subclasses are written as what they are underneath, whatever they print."""
    match part:
        case str():
            try:
                return b"s", str.encode(part, "utf-8")
            except UnicodeEncodeError:
                raise _refusal(where, number, part, "has half a character in it; give whole text") from None
        case bool():
            return b"t", b"1" if part else b"0"
        case int():
            return b"i", int.__format__(part, "x").encode()
        case bytes():
            return b"b", bytes(part)
        case UUID():
            return b"u", part.bytes
        case datetime():
            if part.utcoffset() is None:
                raise _refusal(
                    where, number, part, "has no time zone, so another machine may mean another moment; give one"
                )
            return b"m", str((part - _EPOCH) // timedelta(microseconds=1)).encode()
        case date():
            return b"d", date.isoformat(part).encode()
        case None:
            raise _refusal(where, number, part, "is nothing to derive a key from: was the value not there yet?")
        case float():
            raise _refusal(
                where, number, part, "is a float, which may be rounded differently next time; give text or cents"
            )
        case _:
            kind = type(part).__qualname__
            raise _refusal(
                where, number, part, f"of type {kind}, has no one spelling; give its id, or text of your own"
            )


def _refusal(where: str, number: int, part: object, why: str) -> KeyNotDerivable:
    return KeyNotDerivable(f"part {number} of {where}, {part!r:.80}, {why}")
