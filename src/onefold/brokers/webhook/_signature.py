"""Signatures of webhooks, as in Standard Webhooks, on both sides.

Invariant: nothing a receiver acts on is outside of what was signed. The signature covers webhook-id, timestamp and
body; so the Idempotency-Key and the event's own id must be the webhook-id, and attributes of an event in headers, which
could have been changed on the way, are refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from typing import Final

from onefold._kernel.messages import PREFIX, STRUCTURED, Message, ascii_only, read
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError, MessageUnreadable

SECRET_PREFIX: Final = "whsec_"
_SECRET_BYTES_MIN: Final = 24
_SECRET_BYTES_MAX: Final = 64


def sign(keys: Sequence[bytes], webhook_id: str, body: bytes, *, now_s: float) -> dict[str, str]:
    """The three headers of Standard Webhooks, with one signature for each key, and the key of the request."""
    stamp = str(int(now_s))
    signatures = " ".join(_signature(key, webhook_id, stamp, body) for key in keys)
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": stamp,
        "webhook-signature": signatures,
        "idempotency-key": _quote(webhook_id),
    }


def read_webhook(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_s: float | None = None,
    tolerance_s: float = 300.0,
) -> Message:
    """The event in a webhook that onefold has sent: its `headers` and its `body`, as they came. Checks it first, with
    `secret`, `now_s` and `tolerance_s`, and raises MessageUnreadable, as `verify_webhook` does."""
    verify_webhook(secret, headers, body, now_s=now_s, tolerance_s=tolerance_s)
    found = {name.lower(): value for name, value in headers.items()}
    if _media_type(found) != STRUCTURED:
        raise MessageUnreadable(
            f"the webhook is {_media_type(found) or 'of no type'!r}, not a CloudEvent: {STRUCTURED!r}"
        )
    return read(found, body)


def verify_webhook(
    secret: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_s: float | None = None,
    tolerance_s: float = 300.0,
) -> None:
    """Raises MessageUnreadable unless `secret`, or one of several, has signed this body, as its `headers` say, not
    longer than `tolerance_s` before or after `now_s` (by default the clock's), and the Idempotency-Key and the event's
    id, where there are some, are the id that was signed.

    `body` is the request's, byte for byte, before anything has read it as JSON."""
    require("tolerance_s", tolerance_s, most=86_400)
    found = {name.lower(): value for name, value in headers.items()}
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        if not found.get(name):
            raise MessageUnreadable(f"the webhook has no header {name!r}: it was not signed, or by another scheme")
    _check_time(found["webhook-timestamp"], time.time() if now_s is None else now_s, tolerance_s)
    webhook_id = found["webhook-id"]
    if "." in webhook_id:  # the separator of what is signed: the end of the id would be ambiguous
        raise MessageUnreadable(f"webhook-id={webhook_id[:80]!r} has a dot, which such an id must not have")
    given = [text.encode() for text in found["webhook-signature"].split(" ")]
    expected = [_signature(key, webhook_id, found["webhook-timestamp"], body).encode() for key in read_keys(secret)]
    if not any(hmac.compare_digest(ours, theirs) for ours in expected for theirs in given):
        raise MessageUnreadable("no signature of the webhook fits: it was changed, or signed with another secret")
    _check_agreement(found, webhook_id, body)


def read_keys(secret: str | Sequence[str]) -> list[bytes]:
    """The keys in one secret, or in several while they change."""
    keys = [_key(text) for text in ((secret,) if isinstance(secret, str) else secret)]
    if not keys:
        raise ConfigurationError("secret names no secret: give one, or several while they change")
    return keys


def _check_time(stamp: str, now_s: float, tolerance_s: float) -> None:
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 15):
        raise MessageUnreadable(f"webhook-timestamp={stamp[:40]!r} is not a number of seconds")
    off_s = now_s - int(stamp)
    if abs(off_s) > tolerance_s:
        raise MessageUnreadable(
            f"webhook-timestamp={stamp} is {abs(off_s):.0f} s {'old' if off_s > 0 else 'ahead'}: "
            f"up to {tolerance_s:g} s are accepted, see that both clocks are right"
        )


def _check_agreement(headers: Mapping[str, str], webhook_id: str, body: bytes) -> None:
    """Check that copies of the id elsewhere in the request are equal to the signed one."""
    key = headers.get("idempotency-key")
    if key is not None and key not in (_quote(webhook_id), webhook_id):
        raise MessageUnreadable(
            f"the Idempotency-Key {key[:80]!r} is not the webhook-id {webhook_id!r} that was signed"
        )
    unsigned = sorted(name for name in headers if name.startswith(PREFIX))
    if unsigned:
        raise MessageUnreadable(
            f"the webhook has the header {unsigned[0]!r}, which no signature covers: the attributes of its event "
            f"belong into the body ({STRUCTURED})"
        )
    if _media_type(headers) != STRUCTURED:
        return
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MessageUnreadable(f"the webhook says {STRUCTURED} but is not JSON") from error
    event_id = document.get("id") if isinstance(document, dict) else None
    if not (isinstance(event_id, str) and event_id.isprintable() and ascii_only(event_id) == webhook_id):
        raise MessageUnreadable(f"the event's id {event_id!r:.80} is not the webhook-id {webhook_id!r} that was signed")


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _signature(key: bytes, webhook_id: str, stamp: str, body: bytes) -> str:
    signed = hmac.new(key, f"{webhook_id}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return "v1," + base64.b64encode(signed).decode()


def _key(secret: str) -> bytes:
    """No message repeats a secret."""
    way_out = (
        f"give {SECRET_PREFIX} and base64 of {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX} random bytes, such as "
        f"'{SECRET_PREFIX}' + base64.b64encode(secrets.token_bytes(32)).decode()"
    )
    if not secret.startswith(SECRET_PREFIX):
        raise ConfigurationError(f"a secret of a webhook does not begin with {SECRET_PREFIX!r}: {way_out}")
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise ConfigurationError(f"a secret of a webhook is not base64: {way_out}") from error
    if not _SECRET_BYTES_MIN <= len(key) <= _SECRET_BYTES_MAX:
        raise ConfigurationError(f"a secret of a webhook has {len(key)} bytes: {way_out}")
    return key


def _quote(text: str) -> str:
    """As a structured field's string. The id has been escaped: what is left of ASCII needs no more than this."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
