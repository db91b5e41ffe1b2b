"""Which policy holds for a host: its own, or the one for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        for named, policy in given.items():
            name = named if isinstance(named, str) else ""
            if not name or "/" in name or name != name.strip():
                raise ConfigurationError(
                    f"hosts has {named!r}, which is not a host: write 'api.stripe.com' or 'localhost:8000', without "
                    "scheme and path"
                )
            if not isinstance(policy, RetryPolicy):
                raise ConfigurationError(f"hosts[{name!r}]={policy!r} must be a RetryPolicy")
        self._usual = usual
        self._own = {name.lower(): policy for name, policy in own.items()}

    def of(self, host: str) -> RetryPolicy:
        """The policy of a host, which may have its port behind it."""
        host = host.lower()
        return self._own.get(host) or self._own.get(host.rpartition(":")[0]) or self._usual
