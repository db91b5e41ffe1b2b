"""A consumer does not look before it writes: what docs/answer-cache.md says of caches before the ledger rests on it."""

from __future__ import annotations

from pathlib import Path

from onefold import Onefold, single_principal
from tests.support.crash import Boundaries


def test_a_new_message_asks_the_ledger_nothing_before_its_insert(sqlite_path: Path) -> None:
    boundaries = Boundaries()
    once = Onefold(sqlite_path, principal=single_principal)
    real = once._database
    once._database = boundaries.around(real)
    seen: list[list[str]] = []
    for _ in range(2):
        boundaries.crossings.clear()
        with once.handling("billing", "m1") as tx:
            seen.append([crossing.verb for crossing in boundaries.crossings if crossing.edge == "before"])
        assert (tx is None) is (len(seen) == 2)
    assert seen == [
        ["acquire", "batch (begin as chosen)"],
        ["acquire", "batch (begin as chosen)", "batch (rollback)", "release"],
    ]
    real.close()
    once.close()
