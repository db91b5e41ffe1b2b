"""Ledger rows that no worker writes are forgotten all the same, by those who write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold
from onefold._kernel.messages import Message
from onefold._worker import ledger_reaper
from onefold.errors import ConfigurationError

DAY_S = 86_400.0


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(request.getfixturevalue("postgres_dsn") if request.param == "postgres" else sqlite_path)


def aged(dialect: str, days: int) -> str:
    if dialect == "postgres":
        return f"UPDATE onefold_inbox SET handled_at = now() - interval '{days} days'"
    return f"UPDATE onefold_inbox SET handled_at_ms = handled_at_ms - {days * 86_400_000}"


async def change(once: AsyncOnefold, sql: str) -> None:
    async with once.transaction() as tx:
        await tx.connection.execute(sql)


async def remembered(once: AsyncOnefold) -> list[str]:
    async with once.transaction() as tx:
        rows = await tx.connection.fetch("SELECT message_id FROM onefold_inbox ORDER BY message_id")
        return [name for (name,) in rows]


async def handle(once: AsyncOnefold, message_id: str, **settings: Any) -> None:
    async with once.handling("billing", message_id, **settings):
        pass


async def test_what_is_past_its_retention_is_forgotten_after_a_message_every_few_minutes(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = AsyncOnefold(address)
    await once.migrate()
    for number in range(3):
        await handle(once, f"m{number}")
    await change(once, aged(once._database.dialect, 8))
    await handle(once, "m3")
    assert await remembered(once) == ["m0", "m1", "m2", "m3"], "it is not time yet"
    again = AsyncOnefold(address)  # another process
    await handle(again, "m4", retention_s=9 * DAY_S)
    assert len(await remembered(once)) == 5
    monkeypatch.setattr(ledger_reaper, "EVERY_S", 0.0)
    third = AsyncOnefold(address)
    await handle(third, "m5")
    assert await remembered(once) == ["m3", "m4", "m5"]
    await change(once, aged(once._database.dialect, 8))
    await handle(third, "m5")  # which was handled, but so long ago that nobody remembers after this
    assert await remembered(once) == []
    for one in (once, again, third):
        await one.close()


def test_the_same_on_threads(address: str) -> None:
    once = Onefold(address)
    once.migrate()
    for consumer in ("billing", "mail"):
        with once.handling(consumer, "m1"):
            pass
    with once.transaction() as tx:
        tx.connection.execute(aged(once._database.dialect, 8))
    again = Onefold(address)
    with again.handling("billing", "m2"):
        pass
    with once.transaction() as tx:
        rows = tx.connection.execute("SELECT consumer, message_id FROM onefold_inbox ORDER BY 1, 2").fetchall()
    assert rows == [("billing", "m2"), ("mail", "m1")]
    once.close()
    again.close()


async def test_what_failed_forgets_nothing_and_a_consumer_with_a_worker_is_left_to_it(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path)
    await handle(once, "m1")
    await change(once, aged("sqlite", 8))
    again = AsyncOnefold(sqlite_path)
    with pytest.raises(LookupError):
        async with again.handling("billing", "m2"):
            raise LookupError
    assert await remembered(once) == ["m1"]

    @again.consumer("billing", topic="order.placed", retention_s=30 * DAY_S)
    async def bill(message: Message) -> None: ...

    await handle(again, "m2")
    assert await remembered(once) == ["m1", "m2"]
    await once.close()
    await again.close()


@pytest.mark.parametrize("retention_s", [0.0, -1.0, float("nan"), 4000 * DAY_S])
async def test_a_retention_that_is_none_is_refused_before_anything_is_handled(
    sqlite_path: Path, retention_s: float
) -> None:
    once = AsyncOnefold(sqlite_path)
    with pytest.raises(ConfigurationError, match="'billing': retention_s"):
        await handle(once, "m1", retention_s=retention_s)
    assert await remembered(once) == []
    await once.close()


async def test_a_database_that_fails_while_it_forgets_fails_no_message(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    once = AsyncOnefold(sqlite_path)
    await change(
        once, "CREATE TRIGGER forgets_nothing BEFORE DELETE ON onefold_inbox BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    await handle(once, "m1")
    await change(once, aged("sqlite", 8))
    again = AsyncOnefold(sqlite_path)
    await handle(again, "m2")
    assert await remembered(once) == ["m1", "m2"]
    assert "could not be deleted" in caplog.text
    await once.close()
    await again.close()
