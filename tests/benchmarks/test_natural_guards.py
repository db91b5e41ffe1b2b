"""Natural writes cost what the same statements cost by hand: counted in round trips."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import natural


async def test_natural_writes_cost_no_more_round_trips_than_by_hand(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await natural.count(f"{postgres_dsn}?sslmode=disable")
    assert found.keys() == natural.WAYS.keys()
    assert natural.too_dear(found) == []

    async def look_once_more(tx: Any, name: str) -> None:
        await natural.WAYS["exclusive"][0](tx, name)
        await tx.connection.fetch("SELECT 1")

    exclusive = natural.WAYS["exclusive"]
    monkeypatch.setattr(natural, "WAYS", {"planted": (look_once_more, exclusive[1]), "exclusive": exclusive})
    assert natural.too_dear(await natural.count(f"{postgres_dsn}?sslmode=disable")) == ["planted"]
