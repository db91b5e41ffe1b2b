"""Which policy holds for a host: its own, or the one for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onefold._client.host_names import names_of, read_host
from onefold._policy.retry import RetryPolicy
from onefold.errors import ConfigurationError


class HostPolicies:
    """Policies by host, with or without its port."""

    __slots__ = ("_own", "_usual")

    def __init__(self, usual: RetryPolicy, own: Mapping[str, Any]) -> None:
        given: object = own
        if not isinstance(given, Mapping):
            raise ConfigurationError(
                f"hosts={given!r} must be policies by host, as in "
                "hosts={'api.stripe.com': RetryPolicy(attempts_max=2)}"
            )
        self._usual = usual
        self._own = {read_host("hosts", name): _check_policy(name, policy) for name, policy in own.items()}

    def of(self, host: str) -> RetryPolicy:
        """The policy of a host, which may have its port behind it."""
        return next((self._own[name] for name in names_of(host) if name in self._own), self._usual)


def _check_policy(name: str, policy: object) -> RetryPolicy:
    if not isinstance(policy, RetryPolicy):
        raise ConfigurationError(f"hosts[{name!r}]={policy!r} must be a RetryPolicy")
    return policy
