"""A relay at work while one of its destinations takes nothing: everything else arrives."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats as nats_client
import pytest
from nats.js.api import DiscardPolicy, StreamConfig

from onefold.brokers.nats import NatsBroker
from onefold.errors import BrokerUnavailable, MessageRefused
from onefold.telemetry import DestinationPaused, DestinationResumed, Event, SetAside
from onefold.testing.servers import PrivateNats
from tests.outbox.relaying import Stage, opened
from tests.worker.consuming import until
from tests.worker.test_relay import running


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


async def test_one_bad_destination_stops_nothing_else(stage: Stage) -> None:
    """Its backlog is older than everything else, and larger than many probes."""
    told: list[Event] = []
    bad = True
    stage.broker.answer = lambda message: BrokerUnavailable("full") if bad and message.topic == "full" else None
    await stage.write(*((f"bad{number}", f"k{number % 9}") for number in range(500)), topic="full")
    await stage.write(*((f"bad{number}", None) for number in range(500)), topic="full")
    async with running(stage, listener=told.append, draw=lambda: 0.0, batch_max=100):
        await until(lambda: len(stage.broker.calls) >= 3)
        await stage.write(*((f"good{number}", f"k{number}") for number in range(400)), topic="fine")
        await until(lambda: len(stage.broker.taken) == 400)
        bad = False
        await until(lambda: len(stage.broker.taken) == 1400)
    assert {message.topic for message in stage.broker.taken[:400]} == {"fine"}
    assert DestinationPaused("full", "full") in told
    assert told.count(DestinationResumed("full")) == 1


async def test_ten_events_that_are_answered_badly_stop_nothing_else(stage: Stage) -> None:
    stage.broker.answer = lambda message: BrokerUnavailable("500") if message.data.startswith(b"bad") else None
    await stage.write(*((f"bad{number}", f"b{number}") for number in range(10)))
    async with running(stage, draw=lambda: 0.0):
        await until(lambda: len(stage.broker.calls) >= 3)
        await stage.write(*((f"good{number}", f"k{number}") for number in range(400)))
        await until(lambda: len(stage.broker.taken) == 400)


async def test_an_event_that_is_refused_to_the_end_is_told_and_its_neighbours_go_on(stage: Stage) -> None:
    told: list[Event] = []
    stage.broker.answer = lambda message: MessageRefused("too large") if message.data == b"bad" else None
    [bad, _] = await stage.write(("bad", "a"), ("good", "b"))
    async with running(stage, listener=told.append, attempts_max=1):
        await until(lambda: SetAside(bad, "t", "too large") in told)
        await until(lambda: stage.broker.names == ["good"])


async def test_a_full_subject_of_nats_stops_nothing_else(stage: Stage, nats: PrivateNats) -> None:
    name = f"full-{stage.dialect}"
    broker = NatsBroker(nats.url, stream=name)
    await broker.open()
    client = await nats_client.connect(nats.url)
    config = (await client.jetstream().stream_info(name)).config
    limited = StreamConfig(**{**config.__dict__, "discard": DiscardPolicy.NEW, "max_msgs_per_subject": 5})
    limited.discard_new_per_subject = True
    await client.jetstream().update_stream(limited)

    async def arrived() -> int:
        return (await client.jetstream().stream_info(name)).state.messages

    await stage.write(*((f"bad{number}", None) for number in range(30)), topic="full")
    for number in range(40):
        await stage.write((f"good{number}", None), topic=f"fine{number % 10}")
    async with running(stage, broker=broker, draw=lambda: 0.0):

        async def all_there() -> bool:
            return await arrived() == 5 + 40

        await until(all_there)
    await client.close()
