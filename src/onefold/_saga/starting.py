"""Starts sagas if and only if a transaction commits: a consumer turns an event of its outbox into a start.

A start is idempotent by its id: an event that is delivered twice, or whose process died before the acknowledgement,
starts nothing a second time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onefold._kernel.transaction import Transaction
from onefold._saga.definition import SagaDefinition, Start, begin, check_saga
from onefold._saga.saga_errors import SagaMismatch
from onefold._saga.saga_names import check_saga_id
from onefold.errors import ConfigurationError, OnefoldError

if TYPE_CHECKING:
    from onefold._saga.engine import SagaEngine

In = TypeVar("In")

START_TOPIC: Final = "onefold.saga.start"
#: A loop that runs nothing for so long is blocked; and how often it is probed.
LOOP_S_MAX: Final = 1.0
_LOOP_LOOK_S: Final = 0.1


class EngineLoopAway(OnefoldError):
    """The event loop of the engine does not run for now: the start is tried again."""


def start_on_commit(tx: Transaction[Any], saga: SagaDefinition[In, Any], saga_id: str, given: In) -> str:
    """Start a saga if and only if this transaction (`tx`) commits; the id of the event that does. An engine has to
    consume such events: `engine.consume_starts(once)`. Another input under a known id is a dead letter of that
    consumer; a saga that it does not know is tried again."""
    if not hasattr(tx, "publish"):
        raise ConfigurationError(
            f"start_on_commit({tx!r:.80}, ...) needs the transaction first: write start_on_commit(tx, order, "
            "'order-42', {...}), with the tx of the request, or of `with once.transaction() as tx`"
        )
    check_saga(saga, "start_on_commit(tx, ")
    event_id: str = tx.publish(START_TOPIC, begin(saga, check_saga_id(saga_id), given).to_json())
    return event_id


def add_consumer(engine: SagaEngine, once: Any, name: str) -> None:
    """Add a consumer of such events, which starts their sagas, to a Onefold or AsyncOnefold."""
    if not hasattr(once, "consumer"):
        raise ConfigurationError(f"engine.consume_starts({once!r}) needs a Onefold or an AsyncOnefold")
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigurationError(
            "engine.consume_starts(once) is called on the event loop of the engine, which starts the sagas: inside of "
            "`async with` the engine"
        ) from None

    async def submit(message: Any) -> None:
        await engine.submit(Start.from_json(message.json()))

    async def start_saga(message: Any) -> None:
        if asyncio.get_running_loop() is loop:
            await submit(message)
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(submit(message), loop))

    def start_saga_from_thread(message: Any) -> None:
        _await_from_thread(partial(submit, message), loop)

    handler: Any = start_saga if once._asynchronous else start_saga_from_thread
    # Only a start that no process can do is a dead letter at once. An unknown saga or a closed engine is not: a process
    # of the newer release, or the next one, starts it.
    once.consumer(name, topic=START_TOPIC, dead_letter_on=(SagaMismatch,))(handler)


def _await_from_thread(work: Callable[[], Coroutine[Any, Any, None]], loop: asyncio.AbstractEventLoop) -> None:
    """Run `work` on the engine's loop, while that loop runs. At the end of `with once.consuming()` the loop is blocked,
    and waits for this handler: without the limit neither would end. A start that was given up may still happen, and is
    the same start."""
    is_alive = threading.Event()

    async def run() -> None:
        await work()

    coroutine = run()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise EngineLoopAway("the event loop of the engine is closed") from None
    while True:
        is_alive.clear()
        with suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(is_alive.set)
        ended, _ = wait([future], timeout=_LOOP_LOOK_S)
        if ended:
            return future.result()
        if not is_alive.wait(LOOP_S_MAX):
            future.cancel()
            raise EngineLoopAway(
                f"the event loop of the engine did not run for {LOOP_S_MAX:g} s: something blocks it, such as the end "
                "of a `with once.consuming()` block; the start is tried again"
            )
