"""The requests that were recorded, and that are repeated."""

from __future__ import annotations

from typing import Final, NamedTuple

KEYS: Final = {"ring": b"k" * 32}

BOUNDARY: Final = "recorded-boundary"
FORM: Final = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="item"\r\n\r\nbook\r\n--{BOUNDARY}--\r\n'.encode()


class Scene(NamedTuple):
    """One request; `sealed` where the application had a Keyring."""

    key: str
    path: str
    body: bytes
    media_type: str = "application/json"
    query: str = ""
    sealed: bool = False


SCENES: Final = (
    Scene("plain", "/orders", b'{"item": "book", "cents": 5}'),
    Scene("refund", "/orders/17/refunds", b'{"cents": 5}', query="reason=late"),
    Scene("text", "/orders", b"not JSON", "text/plain"),
    Scene("form", "/orders", FORM, f"multipart/form-data; boundary={BOUNDARY}"),
    Scene("raw", "/raw", b'{"item": "book"}'),
    Scene("fields", "/fields", b'{"item": "book", "at": 1}'),
    Scene("large", "/orders", b"[" + b"1.5," * 30_000 + b"1]"),
    Scene("sealed", "/orders", b'{"item": "pen"}', sealed=True),
    Scene("sealed-refund", "/orders/18/refunds", b'{"cents": 6}', sealed=True),
)
