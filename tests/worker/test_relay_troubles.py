"""What keeps a relay from publishing is told when it begins and when it is over, each once; however troubles meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from onefold._kernel.messages import Confirm, Message
from onefold._worker import broker_watch, relay_loop
from onefold._worker.relay_loop import Relay
from onefold.errors import BrokerError, BrokerUnavailable, ConfigurationError, ConnectionLost
from onefold.telemetry import DestinationPaused, DestinationResumed, Event, RelayPaused, RelayResumed
from tests.outbox.relaying import ScriptedBroker, Stage, down, opened
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until
from tests.worker.test_relay import running


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


class Told:
    """What a relay tells of its troubles."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, RelayPaused | RelayResumed | DestinationPaused | DestinationResumed):
            self.events.append(event)

    def relays(self) -> list[type]:
        return [type(event) for event in self.events if isinstance(event, RelayPaused | RelayResumed)]

    def destinations(self) -> list[type]:
        return [type(event) for event in self.events if isinstance(event, DestinationPaused | DestinationResumed)]


async def test_an_outage_whose_events_were_discarded_is_over(stage: Stage) -> None:
    told, broker = Told(), down()
    await stage.write(("a", "a"), ("b", None))
    async with running(stage, broker=broker, listener=told, draw=lambda: 0.0, poll_s_max=0.05):
        await until(lambda: len(broker.calls) > 2)
        await stage.execute("DELETE FROM onefold_outbox")
        await until(lambda: RelayResumed() in told.events)
    assert told.relays() == [RelayPaused, RelayResumed]
    assert told.destinations() == [DestinationPaused, DestinationResumed]


async def test_a_hiccup_of_the_database_in_an_outage_of_the_broker_does_not_end_that(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, acquire = Told(), stage.database.acquire
    away, asked = False, 0

    async def acquired() -> Any:
        nonlocal asked
        if away:
            asked += 1
            raise ConnectionLost("the database had a hiccup")
        return await acquire()

    monkeypatch.setattr(stage.database, "acquire", acquired)
    broken = True
    stage.broker.answer = lambda message: BrokerUnavailable("nobody answers") if broken else None
    await stage.write(("a", "a"))
    async with running(stage, listener=told, draw=lambda: 0.0, poll_s_max=0.05):
        await until(lambda: len(stage.broker.calls) > 1)
        away = True
        await until(lambda: asked > 1)
        away = False
        calls = len(stage.broker.calls)
        await until(lambda: len(stage.broker.calls) > calls)
        assert told.relays() == [RelayPaused]
        broken = False
        await until(lambda: stage.broker.names == ["a"])
        await until(lambda: RelayResumed() in told.events)
    assert told.relays() == [RelayPaused, RelayResumed]


async def test_a_relay_that_begins_anew_knows_which_destinations_are_paused(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    told, broken = Told(), True
    stage.broker.answer = lambda message: BrokerUnavailable("full") if broken and message.topic == "bad" else None
    await stage.write(("a", None), topic="bad")
    await stage.write(("b", None), topic="good")
    async with running(stage, listener=told, draw=lambda: 0.0, poll_s_max=0.05, lease_s=0.6):
        await until(lambda: told.destinations() == [DestinationPaused])
        await stage.execute("DELETE FROM onefold_relay")
        await until(lambda: "has lost its lease" in caplog.text)
        calls = len(stage.broker.calls)
        await until(lambda: len(stage.broker.calls) > calls)
        broken = False
        await until(lambda: stage.broker.names == ["b", "a"])
        await until(lambda: len(told.destinations()) > 1)
    assert told.destinations() == [DestinationPaused, DestinationResumed]


async def test_a_cancellation_out_of_the_broker_s_client_does_not_end_the_relay(stage: Stage) -> None:
    """Taken for a stop it would, and nothing would be published from then on."""
    cancelled: list[str] = []

    def answer(message: Message) -> Confirm:
        if len(cancelled) < 3:
            cancelled.append(message.id)
            raise asyncio.CancelledError
        return None

    stage.broker.answer = answer
    await stage.write(("a", "a"), ("b", "b"))
    async with running(stage, draw=lambda: 0.0, poll_s_max=0.05):
        await until(lambda: len(cancelled) == 3)
        await stage.make_due()
        await until(lambda: sorted(set(stage.broker.names)) == ["a", "b"])


async def test_what_is_unforeseen_is_logged_and_does_not_end_the_relay(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(ScriptedBroker):
        refreshed = 0

        async def refresh(self) -> None:
            self.refreshed += 1
            if self.refreshed < 4:
                raise RuntimeError("a mistake of ours")

    told, broker = Told(), Odd()
    await stage.write(("a", "a"))
    async with running(stage, broker=broker, listener=told, draw=lambda: 0.0):
        await until(lambda: broker.names == ["a"])
        await until(lambda: RelayResumed() in told.events)
    assert told.relays() == [RelayPaused, RelayResumed]
    assert [record.exc_info is not None for record in caplog.records if record.levelname == "ERROR"] == [True] * 3


@pytest.mark.parametrize("confirm", [True, "ok", ValueError("odd"), BrokerError("neither")])
async def test_an_answer_that_is_no_confirm_is_an_outage_and_not_asked_for_in_a_circle(
    stage: Stage, confirm: Any
) -> None:
    stage.broker.answer = lambda message: confirm
    await stage.write(("a", None), ("b", "b"))
    sent = await stage.run((await stage.entered()).tick())
    assert (sent.confirmed, sent.failures) == ([], [])
    assert repr(confirm) in str(sent.outage)


async def test_a_broker_that_does_not_answer_is_told_once_and_by_health(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is renewed beside the wait, which looks healthy for as long as a broker may take."""
    monkeypatch.setattr(broker_watch, "STALLED_S", 0.3)
    answering = asyncio.Event()

    async def wait() -> None:
        await answering.wait()

    stage.broker.before = wait
    await stage.write(("a", "a"))
    async with running(stage, lease_s=1.5) as relaying:
        await until(lambda: bool(stage.broker.calls))
        await until(lambda: relaying.idle_s > 0.9)
        await until(lambda: "has not answered" in caplog.text)
        answering.set()
        await until(lambda: stage.broker.names == ["a"] and relaying.idle_s < 0.3)
        await stage.write(("b", "b"))
        await until(lambda: stage.broker.names == ["a", "b"])
    told = [record.getMessage() for record in caplog.records if "answered" in record.getMessage()]
    assert len(told) == 2
    assert told[0].startswith("the broker has not answered for ")
    assert told[1].startswith("the broker has answered after ")


class Acquiring:
    """The acquiring of a database's connections, which `instead` takes the place of while it is set."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.instead: Callable[[], Awaitable[None]] | None = None
        self._acquire = stage.database.acquire
        monkeypatch.setattr(stage.database, "acquire", self)

    async def __call__(self) -> Any:
        self.count += 1
        if self.instead is not None:
            await self.instead()
        return await self._acquire()


async def cancelled_elsewhere() -> None:
    raise asyncio.CancelledError


async def test_a_tick_whose_database_does_not_answer_is_told_by_health_and_loses_its_lease(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lease is renewed on another connection, which works: for ever, with events that no other relay may send."""
    for module in (broker_watch, relay_loop):
        monkeypatch.setattr(module, "STALLED_S", 0.5)
    acquiring, answering = Acquiring(stage, monkeypatch), asyncio.Event()
    ticks: list[asyncio.Task[Any] | None] = []

    async def hang_when_marking() -> None:
        if asyncio.current_task() in ticks:  # the renewal beside it goes on
            acquiring.instead = None
            await answering.wait()

    async def arm() -> None:
        ticks.append(asyncio.current_task())
        acquiring.instead = hang_when_marking
        stage.broker.before = None

    stage.broker.before = arm
    await stage.write(("a", "a"))
    async with running(stage, lease_s=0.6) as hanging:
        await until(lambda: "the database has not answered for" in caplog.text)
        assert hanging.idle_s > 0.5
        other = ScriptedBroker()
        async with running(stage, broker=other, lease_s=0.6):
            await until(lambda: other.names == ["a"])
        answering.set()
        await until(lambda: hanging.idle_s < 0.5)


async def test_a_cancellation_out_of_the_driver_does_not_end_the_renewal_of_a_lease(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acquiring, answering = Acquiring(stage, monkeypatch), asyncio.Event()

    async def wait() -> None:
        await answering.wait()

    stage.broker.before = wait
    await stage.write(("a", "a"))
    async with running(stage, lease_s=0.6):
        await until(lambda: bool(stage.broker.calls))
        acquiring.count, acquiring.instead = 0, cancelled_elsewhere
        await until(lambda: acquiring.count == 1)
        acquiring.instead = None
        await until(lambda: acquiring.count == 3)
        answering.set()
        await until(lambda: stage.broker.names == ["a"])


async def test_a_cancellation_out_of_the_driver_is_no_error_of_a_relay_that_stops(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    acquiring = Acquiring(stage, monkeypatch)
    async with running(stage):
        await until(lambda: acquiring.count > 2)
        acquiring.instead = cancelled_elsewhere
    assert "could not hand over its buckets" in caplog.text


async def test_a_relay_that_ends_for_a_mistake_hands_its_buckets_over(stage: Stage) -> None:
    class Mistaken(ScriptedBroker):
        async def refresh(self) -> None:
            raise ConfigurationError("on purpose")

    with pytest.raises(ConfigurationError, match="on purpose"):
        async with asyncio.timeout(PATIENCE_S):
            await Relay(stage.database, Mistaken()).run(asyncio.Event())
    assert await stage.fetch("SELECT count(*) FROM onefold_relay") == [(0,)]
