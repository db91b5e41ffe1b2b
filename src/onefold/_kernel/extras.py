"""What an adapter says when the library it adapts is not installed: which extra brings it."""

from __future__ import annotations


def missing_extra(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """The same error with the way out, for `raise missing_extra(error, "nats") from None`."""
    library = (error.name or extra).partition(".")[0]
    return ModuleNotFoundError(f"{library} is not installed: pip install 'onefold[{extra}]'", name=library)
