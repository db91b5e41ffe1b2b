"""The fixtures for users' tests, asked for as users do, and what goes with them: a drained outbox, and time travel."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Onefold, Transaction, single_principal
from onefold.errors import ConfigurationError
from onefold.fastapi import Tx
from onefold.testing.outbox import drain
from onefold.testing.time_travel import make_older
from tests.http.stages import calling

pytest_plugins = ["onefold.testing.pytest_plugin"]

DAY_S = 86_400.0


def test_an_app_has_a_file_of_its_own_and_what_it_publishes_can_be_taken(onefold_app: Onefold) -> None:
    with onefold_app.transaction() as tx:
        _ = tx.publish("order.placed", {"order": 1}, key=1)
        _ = tx.publish("order.placed", {"order": 2}, key=2)
    assert sorted(event.json()["order"] for event in drain(onefold_app)) == [1, 2]
    assert drain(onefold_app) == []


async def test_an_app_for_asyncio_likewise(async_onefold_app: AsyncOnefold) -> None:
    async with async_onefold_app.transaction() as tx:
        await tx.publish("order.placed", {"order": 1})
    [event] = await drain(async_onefold_app)
    assert (event.source, event.topic) == ("tests", "order.placed")


def handle(once: Onefold, message_id: str) -> bool:
    with once.handling("billing", message_id, retention_s=DAY_S) as tx:
        return tx is not None


def test_what_is_older_than_its_retention_is_forgotten_and_what_is_not_is_not(onefold_app: Onefold) -> None:
    assert handle(onefold_app, "m-1")
    make_older(onefold_app, DAY_S / 2)
    assert not handle(onefold_app, "m-1")
    make_older(onefold_app, DAY_S)
    onefold_app._ledger._next_at.clear()  # rows past their retention are deleted every few minutes
    assert handle(onefold_app, "m-2")
    assert handle(onefold_app, "m-1")


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
async def test_an_expired_key_runs_again(where: str, request: pytest.FixtureRequest) -> None:
    fixture = {"sqlite": "onefold_path", "postgres": "onefold_postgres_dsn"}[where]
    once = AsyncOnefold(request.getfixturevalue(fixture), principal=single_principal, source="tests")
    runs: list[Transaction[Any]] = []
    await once.migrate()
    app = shop(once, runs)
    async with calling(app) as client:
        for _ in range(2):
            assert (await client.post("/orders", key='"k"')).status_code == 200
        assert len(runs) == 1
        await make_older(once, DAY_S - 60)
        await client.post("/orders", key='"k"')
        assert len(runs) == 1
        await make_older(once, 120)
        await client.post("/orders", key='"k"')
        assert len(runs) == 2
        assert (await once.reap()).records == 0
        await make_older(once, 2 * DAY_S)
        assert (await once.reap()).records == 1
    await once.close()


def shop(once: AsyncOnefold, runs: list[Transaction[Any]]) -> Any:
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent(writes=False)
    async def order(tx: Tx[Any]) -> str:
        runs.append(tx)
        return "ordered"

    once.install(app)
    return app


def test_an_event_for_later_is_due_when_its_time_has_come(onefold_app: Onefold) -> None:
    with onefold_app.transaction() as tx:
        _ = tx.publish("reminder", {}, not_before=datetime.now(UTC) + timedelta(hours=1))
    assert drain(onefold_app) == []
    make_older(onefold_app, 3601)
    assert [event.topic for event in drain(onefold_app)] == ["reminder"]


def test_time_does_not_run_backwards(onefold_app: Onefold) -> None:
    with pytest.raises(ConfigurationError, match="seconds"):
        make_older(onefold_app, -1)
