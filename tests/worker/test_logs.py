"""What workers log: each failure with consumer, topic, id, attempt and error; a dead letter as an error; no bodies."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Message, Transaction
from onefold._app.base_app import run_flow
from onefold._kernel.messages import Confirm
from onefold._outbox.status_report import report
from onefold.errors import MessageRefused
from tests.outbox.relaying import ScriptedBroker
from tests.worker.consuming import until

SECRET = "4242 4242 4242 4242"


async def test_a_message_that_fails_is_a_warning_each_time_and_an_error_when_it_is_dead(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    once = AsyncOnefold(sqlite_path, source="shop")

    @once.consumer("billing", topic="order.placed", attempts=2)
    async def charge(message: Message, tx: Transaction[Any]) -> None:
        raise ValueError("the card is declined")

    async with once.relaying(), once.consuming():
        async with once.transaction() as tx:
            event = await tx.publish("order.placed", {"card": SECRET}, key=SECRET)
        await until(lambda: any(each.levelname == "ERROR" for each in caplog.records))
    await once.close()
    [failed, dead] = [each for each in caplog.records if each.name == "onefold.consumer" and event in each.message]
    assert (failed.levelname, dead.levelname) == ("WARNING", "ERROR")
    for part in ("'billing'", event, "'order.placed'", "attempt 1 of 2", "ValueError: the card is declined"):
        assert part in failed.message
    assert re.search(r"it is tried again in [\d.e-]+ s$", failed.message)
    for part in ("'billing'", event, "'order.placed'", "dead letter", "the card is declined", "onefold dlq"):
        assert part in dead.message
    assert SECRET not in caplog.text


async def test_an_event_that_is_refused_is_a_warning_with_what_happens_next(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    broker = ScriptedBroker()

    def refuse(message: Message) -> Confirm:
        return MessageRefused("the subject is full")

    broker.answer = refuse
    once = AsyncOnefold(sqlite_path, source="shop", broker=lambda: broker)
    async with once.relaying():
        async with once.transaction() as tx:
            event = await tx.publish("order.placed", {"card": SECRET})
        await until(lambda: any(event in each.message for each in caplog.records))
    await once.close()
    found = next(each for each in caplog.records if event in each.message)
    assert (found.name, found.levelname) == ("onefold.relay", "WARNING")
    for part in ("'order.placed'", "refused 1 of 25 times", "the subject is full", "tried again in"):
        assert part in found.message
    assert SECRET not in caplog.text


async def test_events_that_no_consumer_has_subscribed_to_are_told_once_for_their_topic_and_never_die(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    once = AsyncOnefold(sqlite_path, source="shop")
    async with once.relaying(attempts_max=1):
        async with once.transaction() as tx:
            for number in range(20):
                await tx.publish("order.placed", {"order": number})

        async def all_wait() -> bool:
            return len((await run_flow(once, report)).stopped) == 20

        await until(all_wait)
        await until(lambda: any("not sent yet" in each.message for each in caplog.records))
        found = await run_flow(once, report)
        handled: list[bytes] = []

        @once.consumer("shipping", topic="order.placed")
        async def ship(message: Message) -> None:
            handled.append(message.data)

        async with once.consuming():
            await until(lambda: len(handled) == 20)
    await once.close()
    assert all(event.next_try_s is not None for event in found.stopped), "a dead letter"
    [told] = [each for each in caplog.records if each.name == "onefold.relay" and each.levelno >= logging.WARNING]
    for part in ("'order.placed'", "no consumer has subscribed", "onefold consume", "onefold outbox"):
        assert part in told.message
    assert "refused" not in told.message
