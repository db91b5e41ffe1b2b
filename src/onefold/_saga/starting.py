"""Sagas that start if and only if a transaction commits: an event of its outbox is turned into a start by a consumer.

A start is idempotent by its id: an event that is delivered twice, or that was handled by a process that died before it
could say so, starts nothing a second time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onefold._kernel.transaction import Transaction
from onefold._saga.definition import SagaDefinition, Start, begin
from onefold._saga.saga_errors import SagaMismatch
from onefold._saga.saga_names import check_saga_id
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._saga.engine import SagaEngine

In = TypeVar("In")

START_TOPIC: Final = "onefold.saga.start"


def start_on_commit(tx: Transaction[Any], saga: SagaDefinition[In, Any], saga_id: str, given: In) -> str:
    """Start a saga if and only if this transaction commits; the id of the event that does. An engine has to consume
    such events: `engine.consume_starts(once)`. Another input under a known id is a dead letter of that consumer; a saga
    that it does not know is tried again."""
    if not isinstance(saga, SagaDefinition):
        raise ConfigurationError(
            f"start_on_commit(tx, {saga!r}, ...): put @saga(...) above the function and start that"
        )
    event_id: str = tx.publish(START_TOPIC, begin(saga, check_saga_id(saga_id), given).to_json())
    return event_id


def add_consumer(engine: SagaEngine, once: Any, name: str) -> None:
    """Have the consumers of an Onefold or AsyncOnefold start what such events ask for."""
    if not hasattr(once, "consumer"):
        raise ConfigurationError(f"engine.consume_starts({once!r}) needs an Onefold or an AsyncOnefold")
    loop = asyncio.get_running_loop()

    async def submit(message: Any) -> None:
        await engine.submit(Start.from_json(message.json()))

    async def start_saga(message: Any) -> None:
        if asyncio.get_running_loop() is loop:
            await submit(message)
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(submit(message), loop))

    def start_saga_from_thread(message: Any) -> None:
        asyncio.run_coroutine_threadsafe(submit(message), loop).result()

    handler: Any = start_saga if once._asynchronous else start_saga_from_thread
    # A saga that is not known here, or an engine that is closed, is none: a process of the newer release, or the next
    # one, has it. Dead letters at once are those that no process can start.
    once.consumer(name, topic=START_TOPIC, dead_letter_on=(SagaMismatch,))(handler)
