"""Noting in the key journal how a call ended.

Invariant: what cannot be noted does not cost the caller the answer. The intent stays open; at most that is a replay.
"""

from __future__ import annotations

import logging

from onefold._kernel.effects import Flow
from onefold.errors import OnefoldError

_log = logging.getLogger("onefold.client")


async def note_end(intent: str | None, note: Flow[None]) -> None:
    """Write the note, or a warning."""
    try:
        await note
    except OnefoldError:
        _log.warning(
            "intent %r: the outcome of its call could not be written to the key journal; a later call of the intent is "
            "sent again, with the same key",
            intent,
            exc_info=True,
        )
