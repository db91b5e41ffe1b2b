"""A saga starts if and only if the transaction that asks for it commits: through the outbox, by a consumer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold, single_principal
from onefold.errors import ConfigurationError, ResultNotSerializable
from onefold.sagas import Saga, SagaUnknown, saga, start_on_commit
from tests.saga.conformance.cases import seen
from tests.saga.conformance.sagas import SAGAS, WORLD, order
from tests.saga.memory_engine import MemoryEngine
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until


@pytest.fixture
async def engine() -> AsyncIterator[MemoryEngine]:
    made = MemoryEngine(SAGAS)
    yield made
    await made.close()


class Stop(Exception):
    """Ends a transaction without a COMMIT."""


async def test_a_committed_transaction_starts_its_saga_and_another_does_not(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    once = AsyncOnefold(tmp_path / "shop.db", principal=single_principal, broker="local", source="shop")
    engine.consume_starts(once)
    async with once.relaying(), once.consuming():
        with contextlib.suppress(Stop):
            async with once.transaction() as tx:
                start_on_commit(tx, order, "rolled-back", {"item": "book"})
                raise Stop
        async with once.transaction() as tx:
            start_on_commit(tx, order, "committed", {"item": "book"})
        await seen("committed", "ship")
        assert (await engine.result("committed", timeout_s=PATIENCE_S))["shipped"] == "shipped"
        async with once.transaction() as tx:  # the same once more, and something else under its id
            start_on_commit(tx, order, "committed", {"item": "book"})
            start_on_commit(tx, order, "committed", {"item": "car"})

        async def is_dead() -> bool:
            async with once.transaction() as tx:
                letters = await tx.connection.execute("SELECT state, reason FROM onefold_letter")
                return [state for state, _ in letters.fetchall()] == ["dead"]

        await until(is_dead)
    with pytest.raises(SagaUnknown):
        await engine.status("rolled-back")
    assert WORLD.of("committed") == ["reserve", "charge", "ship"]
    await once.close()


async def test_a_process_without_the_sagas_code_leaves_its_start_to_one_that_has_it(tmp_path: Path) -> None:
    @saga("of-the-newer-release")
    async def newer(s: Saga, o: dict[str, Any]) -> str:
        return "done"

    async def state() -> list[tuple[str]]:
        async with once.transaction() as tx:
            return list((await tx.connection.execute("SELECT state FROM onefold_letter")).fetchall())

    async def is_there() -> bool:
        return bool(await state())

    for engine in (MemoryEngine([order]), MemoryEngine([order, newer])):
        once = AsyncOnefold(tmp_path / "shop.db", principal=single_principal, broker="local", source="shop")
        engine.consume_starts(once)
        async with once.relaying(), once.consuming():
            if "of-the-newer-release@1" not in engine._sagas:
                async with once.transaction() as tx:
                    start_on_commit(tx, newer, "early", {})
                await until(is_there)
                assert await state() == [("waiting",)]
            else:

                async def is_started() -> bool:
                    return "early" in engine.kept  # noqa: B023

                await until(is_started)
                assert await engine.result("early", timeout_s=PATIENCE_S) == "done"
        await engine.close()
        await once.close()


async def test_consumers_on_threads_start_sagas_on_the_engines_loop(engine: MemoryEngine, tmp_path: Path) -> None:
    once = Onefold(tmp_path / "shop.db", principal=single_principal, broker="local", source="shop")
    engine.consume_starts(once, name="starter")
    with once.relaying(), once.consuming():
        with once.transaction() as tx:
            start_on_commit(tx, order, "from-thread", {"item": "book"})
        await seen("from-thread", "ship")
    once.close()


async def test_a_block_that_is_left_on_the_engines_loop_gives_a_pending_start_back(
    engine: MemoryEngine, tmp_path: Path
) -> None:
    """The end of `with once.consuming()` waits for the handler, on the loop that the handler waits for."""

    def letters() -> list[tuple[str, str]]:
        with once.transaction() as tx:
            return list(tx.connection.execute("SELECT state, reason FROM onefold_letter").fetchall())

    once = Onefold(tmp_path / "shop.db", principal=single_principal, broker="local", source="shop")
    engine.consume_starts(once)
    with once.relaying(), once.consuming():
        with once.transaction() as tx:
            start_on_commit(tx, order, "pending", {"item": "book"})
        await_handler()  # and the loop does not run until the block has ended
    [(state, reason)] = letters()
    assert state == "waiting"
    assert "the event loop of the engine" in reason
    with once.relaying(), once.consuming():
        await seen("pending", "ship")
    assert WORLD.of("pending") == ["reserve", "charge", "ship"]
    once.close()


def await_handler() -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not any(thread.name.startswith("onefold-handler") for thread in threading.enumerate()):
        assert time.monotonic() < until_s
        time.sleep(0.01)


async def test_starts_are_consumed_on_an_event_loop(engine: MemoryEngine, tmp_path: Path) -> None:
    once = Onefold(tmp_path / "shop.db", principal=single_principal, broker="local", source="shop")
    with pytest.raises(ConfigurationError, match=r"consume_starts\(once\) is called on .*event loop"):
        await asyncio.to_thread(engine.consume_starts, once)
    once.close()


async def test_what_cannot_be_started_is_refused_where_it_is_written(engine: MemoryEngine, tmp_path: Path) -> None:
    once = Onefold(tmp_path / "shop.db", principal=single_principal, broker="local", source="shop")
    unstorable: Any = {"item": object()}
    with once.transaction() as tx:
        with pytest.raises(ConfigurationError, match="put @saga"):
            start_on_commit(tx, print, "a", {})  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"start_on_commit\(tx, order, 'order-42', \.\.\.\)"):
            start_on_commit(tx, "order-42", order, {})  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="transaction"):
            start_on_commit(order, tx, "order-42", {})  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="saga id"):
            start_on_commit(tx, order, "a b", {})
        with pytest.raises(ResultNotSerializable):
            start_on_commit(tx, order, "a", unstorable)
    with pytest.raises(ConfigurationError, match="needs a Onefold"):
        engine.consume_starts("shop.db")
    once.close()
