"""What a relay and a consumer cost Postgres through an engine while there is nothing to do."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit

import pytest

from benchmarks.load import HOST
from benchmarks.wire import Wire, counting_proxy
from onefold import AsyncOnefold
from onefold._worker import notify_listener
from tests.support.patience import PATIENCE_S
from tests.worker.test_listening import ONEFOLDS, Desk, at_work, made

#: Statements per second, BEGIN and COMMIT among them.
IDLE_PER_S_MAX: Final = 3.0
WINDOW_S: Final = 2.0


async def statements_per_s(wire: Wire) -> float:
    before, since = wire.statements, time.monotonic()
    await asyncio.sleep(WINDOW_S)
    return (wire.statements - before) / (time.monotonic() - since)


async def lowest_rates(wires: list[Wire], enough: float, windows: int) -> list[float]:
    """Of some windows of time: until all are low enough. A busy machine makes them lower only."""
    lowest = [float("inf")] * len(wires)
    for _ in range(windows):
        rates = await asyncio.gather(*map(statements_per_s, wires))
        lowest = [min(pair) for pair in zip(lowest, rates, strict=True)]
        if max(lowest) <= enough:
            break
    return lowest


@pytest.mark.parametrize("hears", [True, False])
async def test_idle_workers_of_an_engine_make_three_statements_a_second_where_they_hear_of_news(
    hears: bool, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that do not hear are the control: they look on, ten times a second."""
    once = AsyncOnefold(postgres_dsn)
    await once.migrate()
    await once.close()
    if not hears:
        monkeypatch.setattr(notify_listener, "_NOTIFY", "SELECT $1::text, $2::text")
    wires: list[Wire] = []
    async with AsyncExitStack() as stack:
        for name, plain in (("async engine over asyncpg", "ssl"), ("engine over psycopg", "sslmode")):
            port = urlsplit(postgres_dsn).port or 0
            wire, through = await stack.enter_async_context(counting_proxy(HOST, port))
            wires.append(wire)
            place = postgres_dsn.replace(f":{port}/", f":{through}/")
            other = await stack.enter_async_context(made(ONEFOLDS[name], f"{place}?{plain}=disable"))
            Desk(other)
            await stack.enter_async_context(at_work(other, other.consuming()))
            await stack.enter_async_context(at_work(other, other.relaying()))
        windows = int(PATIENCE_S / WINDOW_S) if hears else 1
        lowest = await lowest_rates(wires, IDLE_PER_S_MAX, windows)
    assert max(lowest) <= IDLE_PER_S_MAX if hears else min(lowest) > IDLE_PER_S_MAX
