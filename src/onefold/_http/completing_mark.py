"""What tells a request that the completer makes from those of clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: Where it is in the scope or environ. A client writes headers, which are elsewhere, and an object of ours never.
COMPLETING: Final = "onefold.completing"


@dataclass(frozen=True, slots=True)
class Completing:
    """The request is made again to complete this work, on behalf of the principal that it was begun for, as if it had
    come to where its application was mounted."""

    digest: bytes
    principal: str = field(repr=False)
    mount: str = ""


def completing_of(source: Mapping[str, Any]) -> Completing | None:
    """The mark of a request that the completer makes; None for those of clients."""
    found = source.get(COMPLETING)
    return found if isinstance(found, Completing) else None


def principal_in(source: Mapping[str, Any]) -> str | None:
    """The principal of a request that the completer makes; None for those of clients."""
    found = completing_of(source)
    return None if found is None else found.principal
