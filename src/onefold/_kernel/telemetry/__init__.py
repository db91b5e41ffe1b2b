"""The telemetry contract: what happened, as values handed to a listener.

Metrics, traces and logs are made from these by adapters; the library itself counts nothing. A listener must be
quick and must not raise; what it raises is reported as a warning and changes no outcome.

The classes are apart, by who makes them: a client's process does not pay for those of a relay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from onefold._kernel.telemetry.every_event import Event

Listener: TypeAlias = Callable[["Event"], None]

_log = logging.getLogger("onefold.telemetry")


def tell(listener: Listener | None, event: Event) -> None:
    """Hand an event to the listener, whose failure is its own affair."""
    if listener is None:
        return
    try:
        listener(event)
    except Exception:
        _log.warning(
            "the listener %r raised on %r; it is called again for the next event", listener, event, exc_info=True
        )


def both(first: Listener | None, second: Listener | None) -> Listener | None:
    """One listener for two."""
    if first is None or second is None:
        return first or second

    def each(event: Event) -> None:
        tell(first, event)
        tell(second, event)

    return each
