"""A consumer only, beside producers that know nothing of onefold: each message of NATS is handled once.

ONEFOLD_BROKER=nats://... python -m examples.consumer_only
python -m onefold.testing.servers nats -- python -m examples.consumer_only
"""

from __future__ import annotations

import asyncio
import os

import nats

from onefold import AsyncOnefold, Message, Transaction
from onefold.db.sqlite import AsyncSqlite

once = AsyncOnefold(os.environ.get("ONEFOLD_DATABASE", "mails.db"), source="mails", broker=os.environ["ONEFOLD_BROKER"])
done = asyncio.Event()


@once.consumer("mails", topic="order.placed")
async def write_mail(message: Message, tx: Transaction[AsyncSqlite]) -> None:
    """One row for each message id; a redelivery of it finds the ledger's row."""
    await tx.connection.execute("INSERT INTO mails (item) VALUES (?)", (message.json()["item"],))
    if message.json()["item"] == "the last":
        tx.after_commit(done.set)


async def publish(url: str) -> None:
    """A producer: the same message three times, under one id, and another one."""
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    for item in ("book", "book", "book", "the last"):
        headers = {"ce-id": item, "ce-source": "orders", "ce-type": "order.placed", "ce-specversion": "1.0"}
        await jetstream.publish("onefold.order.placed", f'{{"item": "{item}"}}'.encode(), headers=headers)
    await connection.close()


async def main() -> None:
    """Consume what is published, and count."""
    async with once.transaction() as tx:
        await tx.connection.execute("CREATE TABLE IF NOT EXISTS mails (item TEXT)")
    async with once.consuming():
        await publish(os.environ["ONEFOLD_BROKER"])
        await done.wait()
    async with once.transaction() as tx:
        rows = await tx.connection.execute("SELECT item, count(*) FROM mails GROUP BY item ORDER BY item")
        print(rows.fetchall())
    await once.close()


if __name__ == "__main__":
    asyncio.run(main())
