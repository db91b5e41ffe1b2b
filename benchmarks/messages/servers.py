"""The bench's own NATS: as it comes, or syncing every message to disk before it is confirmed.

NATS as it comes syncs every two minutes, and that is what most run it as. When it syncs always, one message after the
other, then whoever publishes waits for its disk, and all relays are as fast as that.
"""

from __future__ import annotations

from typing import Final

from onefold.testing.servers import PrivateNats

_ALWAYS: Final = "  sync_interval: always\n"


class BenchNats(PrivateNats):
    """A private NATS with the settings it comes with, unless it is told to sync."""

    def __init__(self, *, synced: bool) -> None:
        super().__init__()
        self._synced = synced

    def _furnish(self) -> None:
        super()._furnish()
        if not self._synced:
            settings = self.directory / "nats.conf"
            written = settings.read_text()
            if _ALWAYS not in written:
                raise SystemExit(f"the settings of a private NATS have no {_ALWAYS.strip()!r} to leave out")
            settings.write_text(written.replace(_ALWAYS, ""))
