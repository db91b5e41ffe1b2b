"""The policies that are compared: from the usual first version to what onefold does by default.

All of them are values of `RetryPolicy`, so what is compared is settings, not programs. Those named after a library have
its budget (see `rivals`), attempts and waits; the number of attempts is 4 where the library leaves it to its user.
"""

from __future__ import annotations

from dataclasses import dataclass

from onefold._policy.backoff import Backoff
from onefold._policy.retry import RetryPolicy
from onefold._simulate.rivals import AwsStandard, Envoy, Finagle, GrpcThrottling, RivalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A policy under the name that tables give it."""

    name: str
    policy: RetryPolicy


NO_RETRIES = Entrant(name="no retries", policy=RetryPolicy(attempts_max=1, budget=None, breaker=None))
FIXED = Entrant(name="3 retries", policy=RetryPolicy(attempts_max=4, budget=None, breaker=None))
AWS = Entrant(
    name="AWS standard mode",
    policy=RetryPolicy(
        attempts_max=3, backoff=Backoff(transient_base_s=1.0), budget=RivalConfig(AwsStandard), breaker=None
    ),
)
GRPC = Entrant(
    name="gRPC throttling",
    policy=RetryPolicy(
        backoff=Backoff(transient_base_s=0.1, throttled_base_s=0.1, cap_s=1.0),
        budget=RivalConfig(GrpcThrottling),
        breaker=None,
    ),
)
FINAGLE = Entrant(
    name="Finagle budget",
    policy=RetryPolicy(backoff=Backoff(transient_base_s=0.05), budget=RivalConfig(Finagle), breaker=None),
)
ENVOY = Entrant(
    name="Envoy budget",
    policy=RetryPolicy(
        backoff=Backoff(transient_base_s=0.025, throttled_base_s=0.025, cap_s=0.25),
        budget=RivalConfig(Envoy),
        breaker=None,
    ),
)
BUDGET = Entrant(name="budget only", policy=RetryPolicy(breaker=None))
DEFAULT = Entrant(name="onefold", policy=RetryPolicy())

STANDARD = (NO_RETRIES, FIXED, AWS, GRPC, FINAGLE, ENVOY, BUDGET, DEFAULT)
QUICK = (NO_RETRIES, FIXED, DEFAULT)
