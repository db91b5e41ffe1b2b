"""Which hosts honour Idempotency-Key: only there is a key that the client generates worth anything."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from onefold.errors import ConfigurationError


class KeyHosts:
    """The hosts that were named, or all of them."""

    __slots__ = ("_all", "_names")

    def __init__(self, said: bool | Collection[Any]) -> None:
        self._all = said is True
        self._names: frozenset[str] = frozenset()
        if isinstance(said, bool):
            return
        if isinstance(said, str | bytes) or not isinstance(said, Collection):
            raise ConfigurationError(
                f"generate_keys={said!r} must be a collection of hosts, as {{'api.stripe.com'}} is; True is for all"
            )
        for name in said:
            if not isinstance(name, str) or not name or "/" in name or "@" in name or name != name.strip():
                raise ConfigurationError(
                    f"generate_keys has {name!r}, which is not a host: write 'api.stripe.com' or 'localhost:8000', "
                    "without scheme and path"
                )
        self._names = frozenset(name.lower() for name in said)

    def covers(self, host: str) -> bool:
        """Keys are generated for this host, which may have its port behind it."""
        if self._all or not self._names:
            return self._all
        host = host.lower()
        return host in self._names or host.rpartition(":")[0] in self._names
