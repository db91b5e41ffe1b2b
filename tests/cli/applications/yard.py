"""Consumers over servers: the database and the broker are named by the environment."""

from __future__ import annotations

import os
from typing import Any

from onefold import AsyncOnefold, Transaction
from onefold._kernel.messages import Message

once = AsyncOnefold(os.environ["YARD_DATABASE"], source="yard", broker=os.environ["YARD_BROKER"])


@once.consumer("unload", topic="truck.arrived", order="strict")
async def unload(message: Message, tx: Transaction[Any]) -> None:
    await tx.connection.execute("INSERT INTO unloaded VALUES ($1)", message.json()["order"])
