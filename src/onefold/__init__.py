"""onefold: retry it as often as you like; it happens once."""

from onefold._kernel.events import Claimed, Event, Reaped, Released, Settled
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.errors import OnefoldError
from onefold.face import AsyncOnefold, Onefold
from onefold.http.messages import Request
from onefold.http.policy import Policy, single_principal
from onefold.idempotency.fingerprint import canonical_json, raw_bytes, selected_fields
from onefold.idempotency.sealing import Keyring

__all__ = [
    "AsyncOnefold",
    "Claimed",
    "Event",
    "Keyring",
    "Message",
    "Onefold",
    "OnefoldError",
    "Policy",
    "Reaped",
    "Released",
    "Request",
    "Settled",
    "Transaction",
    "canonical_json",
    "raw_bytes",
    "selected_fields",
    "single_principal",
]
