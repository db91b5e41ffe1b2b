"""Calling others: what a retrying client is set with, what it says of its calls, and what holds for a block of them."""

from onefold._client.call_report import CallReport, report_of
from onefold._client.context import call, intent, options
from onefold._client.fallback import fallback
from onefold._client.retry_conditions import HttpAnswer
from onefold._client.retrying import Retrying, retrying
from onefold._kernel.deadlines import deadline, no_deadline
from onefold._kernel.deadlines import left_s as time_left_s
from onefold._kernel.derive import derive
from onefold._policy.backoff import Backoff
from onefold._policy.breaker import BreakerConfig
from onefold._policy.budget import BudgetConfig
from onefold._policy.limiter import LimiterConfig
from onefold._policy.retry import Reason, RetryPolicy

__all__ = [
    "Backoff",
    "BreakerConfig",
    "BudgetConfig",
    "CallReport",
    "HttpAnswer",
    "LimiterConfig",
    "Reason",
    "RetryPolicy",
    "Retrying",
    "call",
    "deadline",
    "derive",
    "fallback",
    "intent",
    "no_deadline",
    "options",
    "report_of",
    "retrying",
    "time_left_s",
]
