"""Stored answers under the application's own encryption key (AES-256-GCM), rotated without losing any.

One key writes, all keys of the ring read. Each sealed value is bound to its record and its place there: a value moved
to another record or another column, or one whose record was edited, does not open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import blake2b

from onefold._kernel.arguments import name_type, named_arguments
from onefold._kernel.ports import Sealer as Sealer
from onefold.errors import ConfigurationError, StoreError

_KEY_BYTES = 32
_NONCE_BYTES = 12


def peppers_of(sealer: Sealer | None) -> tuple[bytes, ...]:
    """What a sealer adds to the keys of fingerprints, if it does: the one for new ones first, then earlier ones."""
    found = getattr(sealer, "peppers", ())
    if not isinstance(found, tuple) or not all(
        isinstance(pepper, bytes) and 16 <= len(pepper) <= 64 for pepper in found
    ):
        raise ConfigurationError(f"peppers of {type(sealer).__qualname__} must be a tuple of 16 to 64 bytes each")
    return found


class UnreadableAnswer(StoreError):
    """A stored answer cannot be opened: its key left the ring too early, or the row was changed."""

    slug = "answer-unreadable"
    title = "The stored answer cannot be read"
    retryable = False


class Keyring:
    """Named 32-byte keys: `Keyring({"2026-11": new, "2026-05": old}, write="2026-11")`.

    To rotate, add a key and name it in `write`; drop the old one when the retention has passed. From each key a pepper
    is derived for the fingerprints of requests: without the ring, the body of a request cannot be guessed from its
    record, however weak the client's Idempotency-Key. `random_bytes` gives the nonces.
    """

    @named_arguments()
    def __init__(
        self, keys: Mapping[str, bytes], *, write: str, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigurationError("sealing needs cryptography: pip install 'onefold[encryption]'") from error
        if write not in keys:
            raise ConfigurationError(f"write={write!r} names no key of the ring, which has {sorted(keys)}")
        for name, key in keys.items():
            given: object = key
            if not isinstance(given, bytes):
                raise ConfigurationError(
                    f"key {name!r} is {name_type(given)}; it must be {_KEY_BYTES} bytes "
                    f"(os.urandom({_KEY_BYTES})), decoded where it is kept as text"
                )
            if len(key) != _KEY_BYTES:
                raise ConfigurationError(
                    f"key {name!r} has {len(key)} bytes; it must have {_KEY_BYTES} (os.urandom({_KEY_BYTES}))"
                )
            if not 1 <= len(name.encode()) <= 255:
                raise ConfigurationError(f"key name {name!r} must be 1 to 255 bytes long")
        by_age = sorted(keys, key=lambda name: name != write)
        self.peppers = tuple(
            blake2b(digest_size=_KEY_BYTES, key=keys[name], person=b"onefold.pepper").digest() for name in by_age
        )
        self._ciphers = {name.encode(): AESGCM(key) for name, key in keys.items()}
        self._write = write.encode()
        self._invalid_tag = InvalidTag
        self._random_bytes = random_bytes

    def seal(self, plain: bytes, context: bytes) -> bytes:
        """Name of the key, nonce, ciphertext."""
        nonce = self._random_bytes(_NONCE_BYTES)
        sealed = self._ciphers[self._write].encrypt(nonce, plain, context)
        return bytes([len(self._write)]) + self._write + nonce + sealed

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        """What was sealed for the same context. Raises where the ring lacks its key, or where it was changed."""
        name_end = 1 + (sealed[0] if sealed else 0)
        nonce_end = name_end + _NONCE_BYTES
        name = sealed[1:name_end]
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise UnreadableAnswer(
                f"a stored answer was sealed with key {name.decode(errors='replace')!r}, which is not in the ring; "
                "keep a key until the retention of what it sealed has passed"
            )
        try:
            return cipher.decrypt(sealed[name_end:nonce_end], sealed[nonce_end:], context)
        except (self._invalid_tag, ValueError) as error:  # ValueError: cut short before its nonce ends
            raise UnreadableAnswer("a stored answer does not open: it was changed, or its key was") from error
