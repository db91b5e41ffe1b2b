"""onefold: retry it as often as you like; it happens once."""

from onefold._kernel.deadlines import deadline, no_deadline
from onefold._kernel.deadlines import left_s as time_left_s
from onefold._kernel.events import Claimed, Event, Reaped, Released, Settled
from onefold._kernel.messages import Delivery, Message
from onefold._kernel.transaction import Transaction
from onefold.client.conditions import HttpAnswer
from onefold.client.context import call, intent, options
from onefold.client.derive import derive
from onefold.client.fallback import fallback
from onefold.client.report import CallReport, report_of
from onefold.client.retrying import Retrying, retrying
from onefold.errors import OnefoldError
from onefold.face import AsyncOnefold, Onefold
from onefold.http.messages import Request
from onefold.http.policy import Policy, single_principal, trusted_header
from onefold.http.shedding import Shedding, shed_asgi, shed_wsgi
from onefold.idempotency.fingerprint import canonical_json, named_strategy, raw_bytes, selected_fields
from onefold.idempotency.sealing import Keyring
from onefold.inbox.signature import Depends
from onefold.policy.backoff import Backoff
from onefold.policy.breaker import BreakerTerms
from onefold.policy.budget import BudgetTerms
from onefold.policy.limiter import LimiterTerms
from onefold.policy.quota import Quota
from onefold.policy.retry import Reason, RetryPolicy

__all__ = [
    "AsyncOnefold",
    "Backoff",
    "BreakerTerms",
    "BudgetTerms",
    "CallReport",
    "Claimed",
    "Delivery",
    "Depends",
    "Event",
    "HttpAnswer",
    "Keyring",
    "LimiterTerms",
    "Message",
    "Onefold",
    "OnefoldError",
    "Policy",
    "Quota",
    "Reaped",
    "Reason",
    "Released",
    "Request",
    "RetryPolicy",
    "Retrying",
    "Settled",
    "Shedding",
    "Transaction",
    "call",
    "canonical_json",
    "deadline",
    "derive",
    "fallback",
    "intent",
    "named_strategy",
    "no_deadline",
    "options",
    "raw_bytes",
    "report_of",
    "retrying",
    "selected_fields",
    "shed_asgi",
    "shed_wsgi",
    "single_principal",
    "time_left_s",
    "trusted_header",
]


def __getattr__(name: str) -> str:
    """`__version__`, looked up when it is asked for: reading the metadata takes longer than all else here."""
    if name == "__version__":
        from importlib.metadata import version

        return version("onefold")
    raise AttributeError(f"module 'onefold' has no attribute {name!r}")
