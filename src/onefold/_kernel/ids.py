"""UUIDv7 (RFC 9562, 5.7): ids that sort by the millisecond of their birth.

Invariant: time and randomness are inputs; the same inputs give the same id, and `uuid7_ms` reads back the
time that went in.
"""

from __future__ import annotations

import os
import re
from typing import Final
from uuid import UUID

RANDOM_BYTES: Final = 10

_MS_END: Final = 1 << 48
_RAND_B_MASK: Final = (1 << 62) - 1

# Hex and dashes only: UUID() would also take braces, "urn:uuid:" and dashes anywhere. Either case: some
# generators write capitals, and an id whose age goes unnoticed could run again after it expired.
_UUID7: Final = re.compile(
    r"([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII
)


def uuid7(now_ms: int, random_bits: bytes) -> UUID:
    """Unix milliseconds (48 bits), version, 12 random bits, variant, 62 random bits.

    Of the 80 bits given, the topmost 6 go unused.
    """
    if not 0 <= now_ms < _MS_END:
        raise ValueError(f"now_ms is {now_ms}, must be Unix milliseconds in 0..{_MS_END - 1}")
    if len(random_bits) != RANDOM_BYTES:
        raise ValueError(f"random_bits has {len(random_bits)} bytes, must have {RANDOM_BYTES}")
    random = int.from_bytes(random_bits, "big")
    rand_a = random >> 62 & 0xFFF
    rand_b = random & _RAND_B_MASK
    return UUID(int=now_ms << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)


def new_id(now_ms: int) -> str:
    """A fresh UUIDv7."""
    return str(uuid7(now_ms, os.urandom(RANDOM_BYTES)))


def uuid7_ms(text: str) -> int | None:
    """The Unix milliseconds in a UUIDv7 written with hex and dashes; None for any other text."""
    found = _UUID7.fullmatch(text)
    return int(found[1] + found[2], 16) if found else None
