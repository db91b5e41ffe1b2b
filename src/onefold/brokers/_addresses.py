"""Checks a broker's address when the broker is made: a wrong one is refused there, not at the first send."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from onefold._kernel.redaction import redact
from onefold.errors import ConfigurationError


def check_address(broker: str, address: str, schemes: Collection[str]) -> None:
    """Raise ConfigurationError unless the address has one of the schemes and a readable host and port.

    The parser's error is neither quoted nor chained: it repeats what it could not read, which may be a password.
    """
    known = ", ".join(f"{scheme}://" for scheme in schemes)
    try:
        parts = urlsplit(address)
        readable = parts.port != 0
    except ValueError:
        readable = False
    if not readable:
        raise ConfigurationError(
            f"{broker}({redact(address)!r}): the address cannot be read; it is written "
            f"{next(iter(schemes))}://user:password@host:port, with special characters of the password percent-encoded "
            "(%40 for @, %2F for /, %5B for [)"
        ) from None
    if parts.scheme not in schemes:
        raise ConfigurationError(f"{broker}({redact(address)!r}): the address must begin with {known}")
