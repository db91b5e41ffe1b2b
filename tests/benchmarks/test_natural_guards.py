"""Natural writes cost what the same statements cost by hand: counted in round trips, and in function calls besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import natural


async def test_natural_writes_cost_no_more_round_trips_than_by_hand(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await natural.count_trips(f"{postgres_dsn}?sslmode=disable")
    assert found.keys() == natural.WAYS.keys()
    assert natural.too_dear(found, {}) == []

    async def look_once_more(app: natural.Application, tx: Any, name: str) -> None:
        await natural.WAYS["exclusive"][0](app, tx, name)
        await tx.connection.fetch("SELECT 1")

    exclusive = natural.WAYS["exclusive"]
    monkeypatch.setattr(natural, "WAYS", {"planted": (look_once_more, exclusive[1]), "exclusive": exclusive})
    [missed] = natural.too_dear(await natural.count_trips(f"{postgres_dsn}?sslmode=disable"), {})
    assert missed.startswith("planted needs more")


@pytest.mark.parametrize("driver", natural.CALLS_MOST)
async def test_natural_writes_add_no_more_function_calls_than_allowed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str
) -> None:
    file = str(tmp_path / "natural.sqlite3")
    address = file if driver == "sqlite" else f"{request.getfixturevalue('postgres_dsn')}?sslmode=disable"
    found = await natural.count_calls(driver, address)
    assert found.keys() == natural.CALLS_MOST[driver].keys()
    assert natural.too_dear({}, {driver: found}) == []

    # Names that are always new: each call is checked, and its statement written, as if it were the first.
    async def insert_anew(app: natural.Application, tx: Any, name: str) -> None:
        app.once._natural().tables.clear()
        await insert(app, tx, name)

    insert, by_hand = natural.WAYS["insert_once"]
    monkeypatch.setattr(natural, "WAYS", {"insert_once": (insert_anew, by_hand)})
    [missed] = natural.too_dear({}, {driver: await natural.count_calls(driver, address)})
    assert missed.startswith(f"insert_once on {driver} adds")
