"""Signals for commands that run long: the first asks to finish, the second ends the process at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from onefold._cli.output import echo_stderr

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """The event is set by SIGTERM or SIGINT. To be entered on the running loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def finish(name: str) -> None:
        if not stop.is_set():
            echo_stderr(f"{name}: finishing what is in hand; a second {name} stops at once")
            stop.set()

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        loop.call_soon_threadsafe(finish, signal.Signals(number).name)

    before = {each: signal.signal(each, on_signal) for each in _SIGNALS}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)
