"""The channels of Postgres' NOTIFY on which relays and consumers hear that there is something to do.

What is written by a statement that stands in a transaction of its own (an operator's, a relay's) is told by that
statement; writers of events tell after their COMMIT (`_worker/wakeup.py`).
"""

from __future__ import annotations

from typing import Final

from onefold._kernel.pg_catalog import qualified

#: Events may be claimed: for relays.
OUTBOX_CHANNEL: Final = "onefold_outbox"

#: Messages wait at the local broker: for its consumers.
DELIVERY_CHANNEL: Final = "onefold_delivery"

#: What is told of an operator's action, on both: it may be about failed messages, which no delivery tells of.
ACTION: Final = "action"

NOTIFY_RELAYS: Final = qualified(f"SELECT pg_notify('{OUTBOX_CHANNEL}', '')")

#: A CTE and what has it evaluated once, for a statement that makes events claimable.
RELAYS_TOLD: Final = f"WITH told AS MATERIALIZED (SELECT pg_notify('{OUTBOX_CHANNEL}', '') AS heard)"
ARE_TOLD: Final = "EXISTS (SELECT 1 FROM told)"
