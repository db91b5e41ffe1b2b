"""Where a statement waits inside its driver, on a thread, until a test lets it go on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.patience import PATIENCE_S


class Gate:
    """Where a statement waits, inside SQLite."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *value: Any) -> int:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        return 1

    def pass_once(self, work: Callable[[], object]) -> None:
        """Do the work on a thread of its own, and let the statement go on when that waits, or is done."""
        with ThreadPoolExecutor() as pool:
            future = pool.submit(work)
            wait_until_stuck(future)
            self.opened.set()
            future.result(PATIENCE_S)


def wait_until_stuck(future: Future[Any]) -> None:
    """Until it is done, or has not moved for a while. Where it should wait and is slow instead, nothing is found out,
    and nothing fails."""
    with contextlib.suppress(TimeoutError):
        future.exception(0.2)
