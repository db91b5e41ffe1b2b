"""The last step of a relay's or a consumer's stop: the broker is closed, and nothing waits for that for ever."""

from __future__ import annotations

import logging
from typing import Final

from onefold._kernel.foreign_cancellations import finish
from onefold._kernel.ports import Broker

#: How long a broker may take to close. Nothing depends on it any more: what was handled is acknowledged by then.
CLOSE_S_MAX: Final = 5.0

_log = logging.getLogger("onefold.broker")


async def close_broker(broker: Broker) -> None:
    """Close it, also if this task is cancelled meanwhile."""
    if not await finish(broker.close(), CLOSE_S_MAX):
        _log.warning(
            "the broker was not closed within %.0f s: its connections are left to their time-outs", CLOSE_S_MAX
        )
