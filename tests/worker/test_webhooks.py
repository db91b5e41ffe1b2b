"""Webhooks through the relay: each endpoint has a state of its own, and a slow round keeps its lease."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial

import pytest

from onefold._kernel.checkout import with_connection
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.ports import Broker
from onefold._kernel.runners import run_async
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.endpoint_copies import EndpointCopy
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession
from onefold._outbox.status_report import report
from onefold.brokers import _endpoint_schema as schema
from onefold.brokers._adapters import broker_of
from onefold.brokers._endpoints import add, disable, enable, endpoints, note_failures, note_success
from onefold.brokers.webhook import EndpointAnswer, WebhookBroker, _endpoint_table, _slow_endpoints, verify_webhook
from onefold.brokers.webhook._endpoint_table import make_endpoint
from onefold.db._migrations import migrate
from onefold.errors import ConfigurationError, ConnectionLost, MessageRefused, MessageUnreadable
from tests.outbox.relaying import ScriptedBroker, Stage, opened
from tests.worker.consuming import until
from tests.worker.test_relay import running

SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
OWN = "whsec_" + base64.b64encode(b"b" * 32).decode()
GOOD = "https://good.example/hooks"
BAD = "https://bad.example/hooks"


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


def fits(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    with suppress(MessageUnreadable):
        verify_webhook(secret, headers, body)
        return True
    return False


class Receivers:
    """Endpoints that answer as they are told, and count what they got."""

    def __init__(self, **status: int) -> None:
        self.status = status
        self.got: dict[str, list[str]] = {"good": [], "bad": []}
        self.keys: dict[str, str] = {}

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> EndpointAnswer:
        name = "good" if url == GOOD else "bad"
        self.got[name].append(headers["webhook-id"])
        self.keys[name] = next(secret for secret in (SECRET, OWN) if fits(secret, headers, body))
        return EndpointAnswer(status=self.status.get(name, 204), headers={})

    def broker(self) -> WebhookBroker:
        return WebhookBroker({"t": [GOOD, BAD]}, secret=SECRET, sender=self)


@pytest.mark.parametrize("status", [410, 503])
async def test_what_one_endpoint_does_not_take_the_other_gets_once(stage: Stage, status: int) -> None:
    receivers = Receivers(bad=status)
    ids = await stage.write(
        *((str(number), "k") for number in range(20)), *((str(number), None) for number in range(20))
    )
    async with running(stage, broker=receivers.broker(), draw=lambda: 0.0, poll_s_max=0.05):
        await until(lambda: len(set(receivers.got["good"])) == 40)
        await until(lambda: len(receivers.got["bad"]) > 21)
        more = await stage.write(("more", "k"))
        await until(lambda: more[0] in receivers.got["good"])
        receivers.status["bad"] = 204
        await stage.execute("UPDATE onefold_outbox SET due_at = NULL")
        await until(lambda: set(receivers.got["bad"]) == {*ids, *more})
    assert Counter(receivers.got["good"]) == dict.fromkeys([*ids, *more], 1)
    keyed = [id_ for id_ in receivers.got["good"] if id_ in ids[:20]]
    assert keyed == ids[:20]


async def test_what_is_stopped_says_for_which_endpoint_without_its_path(stage: Stage) -> None:
    receivers = Receivers(bad=410)
    await stage.write(("a", "k"))
    async with running(stage, broker=receivers.broker(), attempts_max=1):
        await until(lambda: len(receivers.got["bad"]) == 1)
        await until(lambda: len(receivers.got["good"]) == 1)
    [stopped] = (await stage.run(report(stage.dialect))).stopped
    assert (stopped.destination, stopped.next_try_s) == (make_endpoint("", BAD).name, None)
    assert "/hooks" not in make_endpoint("", BAD).name


class Listed(Receivers):
    """The same, for endpoints of the database."""

    def broker(self) -> WebhookBroker:
        return WebhookBroker(secret=SECRET, sender=self)


def using(stage: Stage, receivers: Receivers) -> Broker:
    """As an application hands it to its relay."""
    return broker_of(receivers.broker, stage.database)


async def test_endpoints_are_added_disabled_and_enabled_while_the_relay_runs(stage: Stage) -> None:
    await run_async(migrate(stage.dialect, schema.MIGRATIONS[stage.dialect]), TaskExecutor(stage.database))
    receivers = Listed()
    async with running(stage, broker=using(stage, receivers), poll_s_max=0.05):
        await stage.write(("nobody wants it", "k"))
        await until(lambda: waiting_is(stage, 0))
        await stage.run(add(stage.dialect, "good", GOOD, ["t"]))
        await stage.run(add(stage.dialect, "bad", BAD, ["*"], secret=OWN))
        await until(lambda: sent_to(stage, receivers, "bad"))
        await until(lambda: waiting_is(stage, 0))
        await stage.run(disable(stage.dialect, "bad", "by hand"))
        await until(lambda: is_left_out(stage, receivers))
        asked = len(receivers.got["bad"])
        assert await stage.run(enable(stage.dialect, "bad")) == 1
        await until(lambda: sent_to(stage, receivers, "bad", more_than=asked + 1))
    assert receivers.keys == {"good": SECRET, "bad": OWN}


async def waiting_is(stage: Stage, count: int) -> bool:
    return await stage.waiting() == count


async def sent_to(stage: Stage, receivers: Receivers, name: str, more_than: int = 0) -> bool:
    """Publish, until it arrives."""
    await stage.write(("x", None))
    return len(receivers.got[name]) > more_than


async def is_left_out(stage: Stage, receivers: Receivers) -> bool:
    """Publish; whether the good one got it, and the bad one did not and will not."""
    [id_] = await stage.write(("x", None))
    await until(lambda: id_ in receivers.got["good"])
    copies = await stage.fetch(f"SELECT 1 FROM onefold_outbox WHERE id = '{id_}' AND destination = 'bad'")
    return id_ not in receivers.got["bad"] and copies == []


@pytest.mark.parametrize("status", [410, 500])
async def test_an_endpoint_that_fails_again_and_again_or_is_gone_is_disabled(
    stage: Stage, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_endpoint_table, "note_failures", partial(note_failures, failing_s=0, failures_max=3))
    await run_async(migrate(stage.dialect, schema.MIGRATIONS[stage.dialect]), TaskExecutor(stage.database))
    await stage.run(add(stage.dialect, "good", GOOD, ["t"]))
    await stage.run(add(stage.dialect, "bad", BAD, ["t"]))
    receivers = Listed(bad=status)
    ids = await stage.write(*((str(number), "k") for number in range(5)))

    async def disabled() -> bool:
        [bad, good] = await stage.run(endpoints(stage.dialect))
        return good.enabled and not bad.enabled and f"answered {status}" in (bad.last_error or "")

    async with running(stage, broker=using(stage, receivers), draw=lambda: 0.0, poll_s_max=0.05):
        await until(disabled)
        await until(lambda: receivers.got["good"] == ids)
    assert await stage.fetch("SELECT DISTINCT destination FROM onefold_outbox") == [("bad",)]


async def test_a_success_ends_a_run_of_failures(stage: Stage) -> None:
    await run_async(migrate(stage.dialect, schema.MIGRATIONS[stage.dialect]), TaskExecutor(stage.database))
    await stage.run(add(stage.dialect, "bad", BAD, ["t"]))
    assert not await stage.run(note_failures(stage.dialect, "bad", 9, "no", failing_s=0))
    assert not await stage.run(note_failures(stage.dialect, "bad", 9, "no"))  # not for a day yet
    receivers = Listed()
    await stage.write(("x", None))
    async with running(stage, broker=using(stage, receivers)):
        await until(lambda: len(receivers.got["bad"]) == 1)
    [seen] = await stage.run(endpoints(stage.dialect))
    assert (seen.failures, seen.failing_since_ms, seen.enabled, seen.last_error) == (0, None, True, None)


async def test_a_success_after_it_was_enabled_takes_the_old_error_away(stage: Stage) -> None:
    await run_async(migrate(stage.dialect, schema.MIGRATIONS[stage.dialect]), TaskExecutor(stage.database))
    await stage.run(add(stage.dialect, "bad", BAD, ["t"]))
    await stage.run(disable(stage.dialect, "bad", "maintenance"))
    await stage.run(enable(stage.dialect, "bad"))
    receivers = Listed()
    await stage.write(("x", None))
    async with running(stage, broker=using(stage, receivers)):
        await until(lambda: len(receivers.got["bad"]) == 1)
    [seen] = await stage.run(endpoints(stage.dialect))
    assert seen.last_error is None


async def test_an_event_whose_only_endpoint_is_disabled_meanwhile_waits_for_it(stage: Stage) -> None:
    """What was meant for it is not taken for what nobody wants, and can be found by its name."""
    await run_async(migrate(stage.dialect, schema.MIGRATIONS[stage.dialect]), TaskExecutor(stage.database))
    await stage.run(add(stage.dialect, "bad", BAD, ["t"]))
    receivers = Listed(bad=503)
    [id_] = await stage.write(("a", "k"))

    async def refused() -> bool:
        rows = await stage.fetch("SELECT destination, error FROM onefold_outbox")
        assert [destination for destination, _ in rows] == ["bad"]
        return all("is disabled" in (error or "") for _, error in rows)

    async with running(stage, broker=using(stage, receivers), draw=lambda: 0.0, poll_s_max=0.05):
        await until(lambda: len(receivers.got["bad"]) > 0)
        await stage.run(disable(stage.dialect, "bad", "maintenance"))
        await until(refused)
        receivers.status["bad"] = 204
        await stage.run(enable(stage.dialect, "bad"))
        await until(lambda: waiting_is(stage, 0))
    assert set(receivers.got["bad"]) == {id_}


async def test_what_was_confirmed_is_not_sent_again_because_its_bookkeeping_fails(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """How an endpoint fares is noted once the database takes it, and nothing that was sent waits for that."""
    away = True

    async def failing(dialect: str, name: str) -> int:
        if away:
            raise ConnectionLost("the database is away")
        return await note_success(dialect, name)

    monkeypatch.setattr(_endpoint_table, "note_success", failing)
    await run_async(migrate(stage.dialect, schema.MIGRATIONS[stage.dialect]), TaskExecutor(stage.database))
    await stage.run(add(stage.dialect, "bad", BAD, ["t"]))
    await stage.run(note_failures(stage.dialect, "bad", 3, "no"))
    receivers = Listed()
    ids = await stage.write(("1", None), ("2", None))
    async with running(stage, broker=using(stage, receivers), poll_s_max=0.05):
        await until(lambda: waiting_is(stage, 0))
        assert "the outcome of deliveries to endpoint bad could not be stored: the database is away" in caplog.text
        away = False
        ids += await stage.write(("3", None))
        await until(lambda: waiting_is(stage, 0))
    assert sorted(receivers.got["bad"]) == sorted(ids)
    [seen] = await stage.run(endpoints(stage.dialect))
    assert seen.failures == 0


async def test_an_endpoint_that_cannot_be_signed_for_costs_the_others_no_second_request(stage: Stage) -> None:
    await run_async(migrate(stage.dialect, schema.MIGRATIONS[stage.dialect]), TaskExecutor(stage.database))
    await stage.run(add(stage.dialect, "good", GOOD, ["t"]))
    await stage.run(add(stage.dialect, "bad", BAD, ["t"], secret="whsec_not base 64"))
    receivers = Listed()
    ids = await stage.write(*((str(number), None) for number in range(5)))

    async def refused() -> bool:
        errors = await stage.fetch("SELECT error FROM onefold_outbox WHERE destination = 'bad'")
        return len(errors) == 5 and all("endpoint bad" in (error or "") for (error,) in errors)

    async with running(stage, broker=using(stage, receivers)):
        await until(refused)
    assert Counter(receivers.got["good"]) == dict.fromkeys(ids, 1)


class Aiming(ScriptedBroker):
    """Sends each message to the endpoints that it names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.endpoints: tuple[str, ...] = names

    def destinations(self, message: Message) -> tuple[str, ...]:
        return self.endpoints


async def test_a_key_keeps_its_order_at_an_endpoint_while_others_come_and_go(stage: Stage) -> None:
    """The second event has one endpoint where the first had two; and the first of them has failed there by then."""
    broker = Aiming("a", "b")
    failing = True
    broker.answer = lambda message: MessageRefused("no") if failing and message.endpoint == "a" else None
    await stage.write(("1", "k"))
    async with running(stage, broker=broker, draw=lambda: 0.0, poll_s_max=0.05):
        await until(lambda: broker.names == ["1"])
        broker.endpoints = ("a",)
        await stage.write(("2", "k"))
        await until(lambda: aimed_at(stage, ["a", "a"]))
        broker.endpoints = ("a", "b")
        await stage.write(("3", "k"))
        await until(lambda: broker.names == ["1", "3"])
        failing = False
        await until(lambda: len(broker.taken) == 5)
    assert [message.data for message in broker.taken if message.endpoint == "a"] == [b"1", b"2", b"3"]


async def aimed_at(stage: Stage, names: list[str]) -> bool:
    return await stage.fetch("SELECT destination FROM onefold_outbox") == [(name,) for name in names]


async def test_of_the_only_endpoint_of_an_event_nothing_is_claimed_while_it_is_paused(stage: Stage) -> None:
    broker = Aiming("a")
    session = RelaySession("r", stage.dialect, RelayConfig(), lambda: 0.0, broker.destinations)
    await stage.run(session.enter())
    session._destinations.note_refused_all("a", time.monotonic() + 3600)
    await stage.write(*((str(number), None) for number in range(5)), ("x", "k"))
    assert (await stage.run(session.tick(), broker)).claimed == 6  # what is not aimed yet may be for others
    assert (await stage.run(session.tick(), broker)).claimed == 0
    assert (await stage.run(session.tick(probing=True), broker)).claimed == 0
    assert broker.calls == []


async def test_an_endpoint_that_cannot_be_one_is_refused_by_name(stage: Stage) -> None:
    for name, url, topics in (
        ("a b", GOOD, ["t"]),
        ("a", "ftp://x", ["t"]),
        ("a", GOOD, []),
        ("a", GOOD, ["no topic"]),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(name)):
            await stage.run(add(stage.dialect, name, url, topics))
    with pytest.raises(ConfigurationError, match="onefold endpoints"):
        await WebhookBroker(secret=SECRET).open()


async def test_two_relays_that_want_to_copy_the_same_event_make_each_copy_once(stage: Stage) -> None:
    await stage.write(("a", "k"))
    aims = Receivers().broker().destinations
    sessions = [await stage.entered() for _ in range(2)]
    rows = await stage.fetch("SELECT position FROM onefold_outbox")
    message = Message(id="a", source="s", topic="t", data=b"")
    copies = [(position, None, name) for (position,) in rows for name in aims(message)]
    for session in sessions:

        async def work(session: object = session) -> None:
            await session._copy([EndpointCopy(*copy) for copy in copies])  # type: ignore[attr-defined]

        await stage.run(with_connection(work))
    assert sorted(await stage.fetch("SELECT destination FROM onefold_outbox")) == sorted(
        (name,) for name in aims(message)
    )


async def test_a_round_that_outlives_the_lease_renews_it(stage: Stage) -> None:
    """Another relay would take the buckets over, and send everything again."""
    slow, others = ScriptedBroker(), ScriptedBroker()
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    slow.before = wait
    await stage.write(*((str(number), f"k{number}") for number in range(37)))
    leases = set()

    async def renewed() -> bool:
        leases.update(await stage.fetch("SELECT leased_until FROM onefold_relay"))
        return len(leases) > 4  # so that the first one is over

    async with running(stage, broker=slow, lease_s=0.5):
        await until(begun.is_set)
        await until(renewed)
        other = await stage.entered(lease_s=0.5)  # who begins takes over from the dead
        assert (await stage.run(other.tick(), others)).claimed == 0
        await stage.run(other.leave())
        go_on.set()
        await until(lambda: len(slow.taken) == 37)
    assert others.taken == []


async def test_an_event_that_was_not_sent_because_its_endpoint_is_slow_has_not_been_tried(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that leaves one request unanswered, and takes the others: what waited meanwhile was counted as tried,
    and became a dead letter that had never been sent."""
    monkeypatch.setattr(_slow_endpoints, "SLOW_S", 0.05)
    asked = Counter[str]()

    async def send(method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> EndpointAnswer:
        asked[headers["webhook-id"]] += 1
        if asked.total() % 3 == 2:
            await asyncio.sleep(timeout_s + 1)
        return EndpointAnswer(status=204, headers={})

    broker = WebhookBroker({"t": GOOD}, secret=SECRET, sender=send, concurrency=1, confirm_s=0.1)
    await stage.write(*((str(number), None) for number in range(9)))
    session = await stage.entered(attempts_max=2)
    for _ in range(20):
        sent = await stage.run(session.tick(), broker)
        assert [each.id for each in sent.dead if not asked[each.id]] == []
        await stage.make_due()
        await stage.run(make_due_claimable(stage.dialect))
        session._destinations.forget()  # its pause is over
        if not await stage.waiting():
            break
    assert len(asked) == 9
    await broker.close()
