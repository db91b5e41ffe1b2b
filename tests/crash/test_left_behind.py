"""Handlers that go and leave something running: it costs its connection, not the pool's."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.asgi_harness import AsgiAsyncpg, AsgiHarness, AsgiPsycopg
from tests.crash.shop import PAY, new_key
from tests.support.patience import PATIENCE_S


@pytest.mark.parametrize("harness", [AsgiAsyncpg, AsgiPsycopg])
def test_a_statement_that_a_broken_handler_left_running_costs_no_place_in_the_pool(
    harness: Any, postgres: PrivatePostgres
) -> None:
    left: list[asyncio.Task[Any]] = []

    async def leave_running(handle: Any, key: str, payload: str) -> None:
        left.append(asyncio.create_task(handle.execute("SELECT pg_sleep(1)")))
        await asyncio.sleep(0)  # it is under way
        raise RuntimeError("the handler goes without it")

    broken: AsgiHarness
    with closing(harness(postgres.fresh_database(), insert=leave_running)) as broken:
        attempt = broken.ask(PAY, new_key(), "10 EUR")
        broken.runner.run(_ended(left))
        assert attempt.reply is not None
        assert attempt.reply.status == 500
        assert broken.leaks() == []


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    """Thrown away with its connection (asyncpg), or waited for by the rollback (psycopg)."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=PATIENCE_S)
