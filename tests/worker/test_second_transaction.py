"""A consumer's handler has its transaction: a second one, which would commit apart from it, is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

from onefold import AsyncOnefold, Message, Onefold
from onefold.errors import ProgrammerError

PATIENCE_S = 60.0


async def test_a_second_transaction_inside_an_async_handler_is_refused(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    handled, said = asyncio.Event(), list[str]()

    @once.consumer("mail", topic="order.placed")
    async def write(message: Message) -> None:
        try:
            async with once.transaction():
                said.append("entered")
        except ProgrammerError as error:
            said.append(str(error))
        handled.set()

    async with once.consuming(), once.relaying():
        async with once.transaction() as tx:
            await tx.publish("order.placed", {})
        await asyncio.wait_for(handled.wait(), PATIENCE_S)
    assert len(said) == 1
    assert said[0].startswith("once.transaction() was called inside a consumer's handler")
    await once.close()


async def test_a_second_transaction_inside_a_handler_on_a_thread_is_refused(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, source="shop")
    loop, handled, said = asyncio.get_running_loop(), asyncio.Event(), list[str]()

    @once.consumer("mail", topic="order.placed")
    def write(message: Message) -> None:
        try:
            with once.transaction():
                said.append("entered")
        except ProgrammerError as error:
            said.append(str(error))
        loop.call_soon_threadsafe(handled.set)

    def publish() -> None:
        with once.transaction() as tx:
            _ = tx.publish("order.placed", {})

    with once.consuming(), once.relaying():
        await asyncio.to_thread(publish)
        await asyncio.wait_for(handled.wait(), PATIENCE_S)
    assert len(said) == 1
    assert said[0].startswith("once.transaction() was called inside a consumer's handler")
    once.close()
