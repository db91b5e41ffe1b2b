"""The telemetry contract: what happened, as values handed to a listener.

Metrics, traces and logs are made from these by adapters; the library itself counts nothing. A listener must be
quick and must not raise; what it raises is reported as a warning and changes no outcome.

Event classes are split by what emits them: a client's process does not import those of a relay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from onefold._kernel.telemetry.every_event import Event

Listener: TypeAlias = Callable[["Event"], None]
#: What users pass: one listener, or several.
Listeners: TypeAlias = Listener | Sequence[Listener]

_log = logging.getLogger("onefold.telemetry")


def emit(listener: Listener | None, event: Event) -> None:
    """Call the listener with an event. What it raises is logged, not raised."""
    if listener is None:
        return
    try:
        listener(event)
    except Exception:
        _log.warning(
            "the listener %r raised on %r; it is called again for the next event", listener, event, exc_info=True
        )


def join(*given: Listeners | None) -> Listener | None:
    """One listener for several. One that is given twice is called once: metrics would count double."""
    listeners: list[Listener] = []
    for each in given:
        for listener in split_listeners(each):
            if listener not in listeners:
                listeners.append(listener)
    if len(listeners) <= 1:
        return listeners[0] if listeners else None
    return _ListenerList(listeners)


def are_listeners(given: object) -> bool:
    """Whether this is what `join` takes."""
    several = given if isinstance(given, list | tuple) else (given,)
    return given is None or all(callable(each) for each in several)


class _ListenerList:
    """Calls each listener with every event, whatever the others raise."""

    __slots__ = ("listeners",)

    def __init__(self, listeners: list[Listener]) -> None:
        self.listeners = listeners

    def __call__(self, event: Event) -> None:
        for listener in self.listeners:
            emit(listener, event)


def split_listeners(given: Listeners | None) -> Sequence[Listener]:
    """The single listeners of an argument, or of a joined one."""
    if given is None:
        return ()
    if isinstance(given, _ListenerList):
        return given.listeners
    return (given,) if callable(given) else given
