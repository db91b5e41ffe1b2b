"""What the tasks of every desk do: ship an order, and get into the trouble that its name asks for."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

URL: Final = os.environ.get("DESK_BROKER", "redis://localhost:1")
DATABASE: Final = os.environ.get("DESK_DATABASE", ":memory:")
_CALLS: Final = Path(os.environ.get("DESK_CALLS", os.devnull))


def insert(order: str) -> str:
    """Counts the call, and gives what ships the order."""
    with _CALLS.open("a") as calls:
        calls.write(f"{order}\n")
    return f"INSERT INTO shipments VALUES ('{order}')"


def get_into_trouble(order: str, tx: Any) -> None:
    """Fail twice, die once before COMMIT, or die once between COMMIT and the acknowledgement."""
    calls = _CALLS.read_text().splitlines().count(order)
    if order == "fails" and calls <= 2:
        raise RuntimeError("as you wish")
    if order == "dies" and calls == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if order == "commits" and calls == 1:
        tx.after_commit(os.kill, os.getpid(), signal.SIGKILL)
