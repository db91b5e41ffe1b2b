"""What a test gives to a tool of `onefold.testing`, checked where it is given, not in the tool's middle."""

from __future__ import annotations

from onefold._app import AsyncOnefold, Onefold
from onefold.errors import ConfigurationError


def require_once(once: object, *kinds: type[Onefold | AsyncOnefold], instead: str = "") -> None:
    """Raise ConfigurationError unless it is the application's Onefold, of one of these kinds (by default of either)."""
    kinds = kinds or (Onefold, AsyncOnefold)
    if not isinstance(once, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigurationError(f"once={once!r:.80} is not an {wanted}{instead}")
