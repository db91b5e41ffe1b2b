"""A process that claims intents from a journal, told line by line what to do: for tests of several, and of dead ones.

`claim NAME` answers with the key and whether it was known; `die NAME` does the same, and the process is killed the
moment that its claim has returned. The mistakes that a journal could make are here too, for the controls.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from math import inf

from onefold._client.journal.flow import Journal
from onefold._client.journal.records import ClaimedKey
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Acquire, Batch, Boundary, Fetch
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.db._drivers import sync_database

HASH = b"h" * 16
TARGET = "POST https://bank.example/payments"


class Hasty(Journal):
    """Looks first, then writes, and goes by what it saw."""

    async def claim(
        self, intent: str, fingerprint: bytes, target: str, key: str | None = None, *, until: float = inf
    ) -> ClaimedKey:
        async def work() -> ClaimedKey:
            if rows := await Fetch(self._sql.look(intent)):
                return ClaimedKey(rows[0][0], known=True)
            fresh = self._new_key()
            await Batch((Boundary.BEGIN, self._sql.insert(intent, fresh, fingerprint, target), Boundary.COMMIT))
            return ClaimedKey(fresh, known=False)

        return await with_connection(work)


class Unwritten(Journal):
    """Hands out the key before COMMIT."""

    async def claim(
        self, intent: str, fingerprint: bytes, target: str, key: str | None = None, *, until: float = inf
    ) -> ClaimedKey:
        key = self._new_key()
        await Acquire()
        await Batch((Boundary.BEGIN, self._sql.insert(intent, key, fingerprint, target)))
        return ClaimedKey(key, known=False)


JOURNALS: dict[str, type[Journal]] = {"journal": Journal, "hasty": Hasty, "unwritten": Unwritten}


def live(address: str, kind: str) -> None:
    with closing(sync_database(address)) as database:
        journal = JOURNALS[kind](database.dialect)
        print("ready", flush=True)
        for line in sys.stdin:
            verb, intent = line.split()
            executor = ThreadExecutor(database)
            named = run(journal.claim(intent, HASH, TARGET), executor)
            print(named.key, named.known, flush=True)
            if verb == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            executor.abandon()


if __name__ == "__main__":
    live(*sys.argv[1:])
