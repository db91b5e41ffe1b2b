"""The policies that are compared: from what everybody writes first to what onefold does by default.

All of them are values of `RetryPolicy`, so what is compared is settings, not programs.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold.policy.budget import BudgetTerms
from onefold.policy.retry import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy under the name that tables give it."""

    name: str
    policy: RetryPolicy


NO_RETRIES = Entrant(name="no retries", policy=RetryPolicy(attempts_max=1, budget=None, breaker=None))
FIXED = Entrant(name="3 retries", policy=RetryPolicy(attempts_max=4, budget=None, breaker=None))
BUCKET = Entrant(
    # A tenth of a retry per success and up to ten saved, however little traffic a process has.
    name="token bucket",
    policy=RetryPolicy(budget=BudgetTerms(cap_least=10, cap_most=10), breaker=None),
)
BUDGET = Entrant(name="budget only", policy=RetryPolicy(breaker=None))
DEFAULT = Entrant(name="onefold", policy=RetryPolicy())

STANDARD = (NO_RETRIES, FIXED, BUCKET, BUDGET, DEFAULT)
QUICK = (NO_RETRIES, FIXED, DEFAULT)
