"""A fault before and after every verb of a claim: a key that was handed out is never lost, whoever asks next.

A planted mistake runs through the same harness and must be seen to break: handing out the key before COMMIT.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from onefold._client.journal.flow import Journal
from onefold._client.journal.records import ClaimedKey
from onefold._kernel.effects import Discard
from onefold.errors import StoreError
from tests.client.journal.backends import HASH, PAY, TARGET, Backend
from tests.client.journal.lives import Unwritten
from tests.support.crash import Act, Boundaries, Crossing, lose_connection, never_struck, strikes


class Killed(BaseException):
    """The process is gone: nothing after it happens."""


def kill(crossing: Crossing) -> None:
    raise Killed(str(crossing))


class Careless(Unwritten):
    """And lets go of its connection."""

    async def claim(
        self, intent: str, fingerprint: bytes, target: str, key: str | None = None, *, until: float = inf
    ) -> ClaimedKey:
        named = await super().claim(intent, fingerprint, target)
        await Discard()
        return named


async def broken(backend: Backend, make: Callable[[], Journal], act: Act) -> list[str]:
    """Strike everywhere; the crossings after which a key was lost, or an intent had two."""
    wrong, struck, counted = [], [], []
    for strike in strikes(act):
        await backend.change("DELETE FROM onefold_intent")
        boundaries = Boundaries(strike)
        handed_out: list[str] = []
        for _ in range(2):
            try:
                named = await backend.flow(make().claim(PAY, HASH, TARGET), boundaries.around_async(backend.database))
                handed_out.append(named.key)
            except (StoreError, Killed):
                pass
        last = await backend.claim(backend.journal())
        if {*handed_out, last.key} != {last.key} or last.known < bool(handed_out):
            wrong.append(f"{strike.struck}: {handed_out} {last}")
        if strike.struck is None:
            counted = boundaries.crossings
        else:
            struck.append(strike.struck)
    assert never_struck(counted, struck) == []
    assert len(struck) >= 8
    return wrong


@pytest.mark.parametrize("act", [lose_connection, kill], ids=["lost", "killed"])
async def test_wherever_it_is_struck_a_claim_loses_no_key(backend: Backend, act: Act) -> None:
    assert await broken(backend, backend.journal, act) == []


async def test_control_a_key_handed_out_before_commit_is_seen_to_be_lost(on_postgres: Backend) -> None:
    assert await broken(on_postgres, lambda: Careless("postgres"), lose_connection) != []
