"""A key as traces and logs have it: hashed, and the same at the client, at the server and in every process."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_BYTES: Final = 16


def hash_key(key: str) -> str:
    """32 hexadecimal digits that stand for an Idempotency-Key. Neither principal nor operation is in it: a client does
    not know what the server makes of them, and both must find the other's spans by it."""
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_BYTES, person=b"onefold.key").hexdigest()
