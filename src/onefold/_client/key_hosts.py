"""Which hosts honour Idempotency-Key: only there is a key that the client generates worth anything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onefold._client.host_names import names_of, not_a_host, read_host
from onefold.errors import ConfigurationError


class KeyHosts:
    """The hosts that were named, or all of them."""

    __slots__ = ("_all", "_names")

    def __init__(self, hosts: bool | Collection[Any]) -> None:
        self._all = hosts is True
        self._names: frozenset[str] = frozenset()
        if isinstance(hosts, bool):
            return
        if isinstance(hosts, str | bytes) or not isinstance(hosts, Collection):
            raise ConfigurationError(
                f"generate_keys={hosts!r} must be a collection of hosts, as {{'api.stripe.com'}} is; True is for all"
            )
        for name in hosts:
            if isinstance(name, str) and ("@" in name or " " in name):
                raise not_a_host("generate_keys", name)
        self._names = frozenset(read_host("generate_keys", name) for name in hosts)

    def covers(self, host: str) -> bool:
        """Keys are generated for this host, which may have its port behind it."""
        if self._all or not self._names:
            return self._all
        return not self._names.isdisjoint(names_of(host))
