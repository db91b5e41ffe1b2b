"""Consumers over a real broker: what is cut off comes again, and has its effect once."""

from __future__ import annotations

import asyncio
from typing import Any

from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.brokers.nats import NatsBroker
from onefold.testing.servers import PrivateNats
from tests.inbox.backends import message, postgres_backend
from tests.worker.consuming import running, until

NAMES = [f"m{number:02}" for number in range(20)]


async def test_messages_cut_off_in_their_handlers_come_again_and_have_their_effect_once(
    nats: PrivateNats, inbox_dsn: str
) -> None:
    async with postgres_backend(inbox_dsn) as backend:
        entered = asyncio.Event()

        async def stuck(given: Message, tx: Transaction[Any]) -> None:
            await backend.write(tx, given.id)
            if given.id > "m09":
                entered.set()
                await asyncio.Event().wait()

        def broker() -> NatsBroker:
            return NatsBroker(nats.url, stream="consumer-test", ack_wait_s=2.0)

        first = broker()
        await first.open()
        await (await first.subscribe("billing", ["order.placed"])).close()
        assert await first.publish([message(name) for name in NAMES]) == [None] * len(NAMES)
        consumers = ConsumerRunner(backend.database, first, [backend.consumer(stuck)], grace_s=0.05)
        async with running(consumers) as stop:
            await entered.wait()
            stop.set()
        await first.close()
        assert set(await backend.effects()) <= set(NAMES[:10])

        second = broker()
        async with running(ConsumerRunner(backend.database, second, [backend.consumer()])):

            async def all_done() -> bool:
                return len(await backend.ledger()) == len(NAMES) and not await backend.failed_messages()

            await until(all_done)
        await second.close()
        assert await backend.effects() == NAMES
