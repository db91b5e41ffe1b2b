"""onefold: retry it as often as you like; it happens once."""

from onefold._kernel.deadlines import deadline
from onefold._kernel.deadlines import left_s as time_left_s
from onefold._kernel.events import Claimed, Event, Reaped, Released, Settled
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.client.context import intent
from onefold.client.derive import derive
from onefold.client.report import CallReport, report_of
from onefold.client.retrying import Retrying, retrying
from onefold.errors import OnefoldError
from onefold.face import AsyncOnefold, Onefold
from onefold.http.messages import Request
from onefold.http.policy import Policy, single_principal
from onefold.http.shedding import Shedding, shed_asgi, shed_wsgi
from onefold.idempotency.fingerprint import canonical_json, raw_bytes, selected_fields
from onefold.idempotency.sealing import Keyring
from onefold.policy.backoff import Backoff
from onefold.policy.breaker import BreakerTerms
from onefold.policy.budget import BudgetTerms
from onefold.policy.retry import Reason, RetryPolicy

__all__ = [
    "AsyncOnefold",
    "Backoff",
    "BreakerTerms",
    "BudgetTerms",
    "CallReport",
    "Claimed",
    "Event",
    "Keyring",
    "Message",
    "Onefold",
    "OnefoldError",
    "Policy",
    "Reaped",
    "Reason",
    "Released",
    "Request",
    "RetryPolicy",
    "Retrying",
    "Settled",
    "Shedding",
    "Transaction",
    "canonical_json",
    "deadline",
    "derive",
    "intent",
    "raw_bytes",
    "report_of",
    "retrying",
    "selected_fields",
    "shed_asgi",
    "shed_wsgi",
    "single_principal",
    "time_left_s",
]
