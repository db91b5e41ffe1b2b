"""A relay's tick: nothing is lost, a stream keeps its order, a refusal stops its key and an outage stops nobody's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onefold._kernel.effects import Now, Publish
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.runners import run_async
from onefold._outbox.claimed_rows import assign_buckets, read, rounds
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.relay_config import RelayConfig
from onefold.errors import (
    BrokerUnavailable,
    ConfigurationError,
    ConnectionLost,
    ProgrammerError,
)
from tests.outbox.relaying import ScriptedBroker, Stage, down, opened, refusing
from tests.support.crash import Boundaries, Crossing


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request) as stage:
        yield stage


ATTEMPTS = "SELECT data, started, finished, error FROM onefold_outbox ORDER BY coalesce(key, 'z'), version"


# --- publishing ---------------------------------------------------------------------------------------------


async def test_what_was_written_is_published_once_and_gone(stage: Stage) -> None:
    [id_] = await stage.write(("placed", "order-1"), headers={"traceparent": "00-ab"})
    session = await stage.entered()
    sent = await stage.run(session.tick())
    assert (sent.claimed, len(sent.confirmed), sent.failures) == (1, 1, [])
    [message] = stage.broker.taken
    assert (message.id, message.source, message.topic, message.key) == (id_, "tests", "t", "order-1")
    assert (message.data, message.content_type, message.headers) == (b"placed", "text/plain", {"traceparent": "00-ab"})
    assert message.version == 1
    assert message.epoch is not None
    assert await stage.waiting() == 0
    assert (await stage.run(session.tick())).claimed == 0
    assert len(stage.broker.calls) == 1


async def test_one_message_of_a_key_is_in_flight_and_keys_do_not_wait_for_each_other(stage: Stage) -> None:
    await stage.write(("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"), ("x", None), ("y", None))
    await stage.drain(await stage.entered())
    calls = [{message.data.decode() for message in call} for call in stage.broker.calls]
    assert calls == [{"a1", "b1", "x", "y"}, {"a2", "b2"}, {"a3"}]


async def test_a_batch_has_no_more_rows_and_bytes_than_allowed_and_a_larger_event_goes_alone(stage: Stage) -> None:
    await stage.write(*((str(number), "k") for number in range(25)))
    session = await stage.entered(batch_max=10)
    assert (await stage.run(session.tick())).claimed == 4  # enough of a bucket to see that they are of one stream
    assert (await stage.run(session.tick())).claimed == 10
    assert (await stage.run(session.tick(rows_max=3))).claimed == 3
    await stage.drain(session)
    await stage.write(("x" * 60, "k"), ("y" * 50, "k"), ("z" * 500, "k"), ("z", "k"))
    small = await stage.entered(batch_max=640, batch_bytes_max=110)
    await stage.expire(session)
    await stage.run(small.renew_and_rebalance())
    claimed = [(await stage.run(small.tick())).claimed for _ in range(4)]
    assert claimed == [2, 1, 1, 0]
    assert stage.broker.names[:25] == [str(number) for number in range(25)]


async def test_many_buckets_that_fill_up_at_once_do_not_exceed_the_batch(stage: Stage) -> None:
    await stage.write(("one", "k"))
    session = await stage.entered(batch_max=64)
    await stage.run(session.tick())  # one bucket had rows, so it may fill a batch now
    await stage.write(*((str(number), f"k{number}") for number in range(300)))
    assert (await stage.run(session.tick())).claimed == 64
    await stage.drain(session)
    assert len(stage.broker.taken) == 301


# --- refusals -----------------------------------------------------------------------------------------------


async def test_a_refused_event_stops_its_key_and_nobody_else(stage: Stage) -> None:
    await stage.write(("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("b2", "b"), ("x", None))
    session = await stage.entered()
    refuses = refusing("a2", "x")
    sent = await stage.run(session.tick(), refuses)
    assert sorted(refuses.names) == ["a1", "b1", "b2"]
    assert len(sent.failures) == 2
    assert await stage.fetch(ATTEMPTS) == [(b"a2", 1, 1, "too large"), (b"a3", 0, 0, None), (b"x", 1, 1, "too large")]
    await stage.write(("a4", "a"), ("b3", "b"))
    await stage.drain(session)
    assert stage.broker.names == ["b3"]
    await stage.make_due()
    assert await stage.run(make_due_claimable(stage.dialect)) is None
    await stage.drain(session)
    assert [name for name in stage.broker.names if name.startswith("a")] == ["a2", "a3", "a4"]
    assert await stage.waiting() == 0


async def test_refusals_are_counted_and_waited_for_longer_each_time(stage: Stage) -> None:
    await stage.write(("a", "a"))
    session = await stage.entered()
    waits = []
    for _ in range(12):
        sent = await stage.run(session.tick(), refusing("a"))
        waits.append(sent.failures[0].wait_ms)
        await stage.make_due()
        await stage.run(make_due_claimable(stage.dialect))
    assert 500 <= waits[0] <= 1000
    assert 8_000 <= waits[4] <= 16_000
    assert 150_000 <= waits[11] <= 300_000
    assert await stage.fetch(ATTEMPTS) == [(b"a", 12, 12, "too large")]


async def test_an_adapter_that_breaks_on_one_message_costs_that_message_only(stage: Stage) -> None:
    await stage.write(("good", None), ("bad", None), ("fine", None))

    def answer(message: Message) -> Confirm:
        if message.data == b"bad":
            raise KeyError("no such thing")
        return None

    stage.broker.answer = answer
    sent = await stage.run((await stage.entered()).tick())
    assert sorted(stage.broker.names) == ["fine", "good"]
    assert len(sent.failures) == 1
    [(data, _, _, error)] = await stage.fetch(ATTEMPTS)
    assert data == b"bad"
    assert "KeyError" in error


async def test_a_row_that_cannot_be_read_stops_its_key_and_not_the_relay(stage: Stage) -> None:
    await stage.write(("broken", "a"), ("behind", "a"), ("fine", "b"))
    await stage.execute("UPDATE onefold_outbox SET headers = 'what?' WHERE version = 1 AND key = 'a'")
    await stage.drain(await stage.entered())
    assert stage.broker.names == ["fine"]
    rows = await stage.fetch(ATTEMPTS)
    assert [row[0] for row in rows] == [b"broken", b"behind"]
    assert "cannot be read" in rows[0][3]


async def test_a_failure_is_not_marked_by_a_relay_that_was_buried(stage: Stage) -> None:
    await stage.write(("a", "a"), ("b", "b"))
    session = await stage.entered()
    broker = refusing("a")

    async def take_over() -> None:
        await stage.expire(session)
        await stage.entered()

    broker.before = take_over
    await stage.run(session.tick(), broker)
    # What was confirmed is published, whoever says so. The refused row is the other relay's business now.
    assert await stage.fetch("SELECT data, finished, due_at FROM onefold_outbox") == [(b"a", 0, None)]


# --- outages ------------------------------------------------------------------------------------------------


async def test_what_is_not_taken_while_others_are_is_put_off_and_burns_no_attempt(stage: Stage) -> None:
    await stage.write(("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"))
    session = await stage.entered()
    broker = ScriptedBroker()
    broker.answer = lambda message: BrokerUnavailable("gone") if message.data == b"b1" else None
    sent = await stage.run(session.tick(), broker)
    assert sent.outage is None
    assert broker.names == ["a1", "a2"]
    assert await stage.fetch(ATTEMPTS) == [(b"b1", 0, 0, "gone"), (b"b2", 0, 0, None)]
    await stage.make_due()
    await stage.run(make_due_claimable(stage.dialect))
    await stage.drain(session)
    assert stage.broker.names == ["b1", "b2"]


async def test_an_outage_burns_no_attempt(stage: Stage) -> None:
    await stage.write(("a1", "a"), ("a2", "a"), ("b1", "b"))
    session = await stage.entered()
    broker = down()
    sent = await stage.run(session.tick(), broker)
    assert isinstance(sent.outage, BrokerUnavailable)
    assert len(broker.calls) == 1  # no second wave into an outage
    assert await stage.fetch(ATTEMPTS) == [(b"a1", 0, 0, None), (b"a2", 0, 0, None), (b"b1", 0, 0, None)]


async def test_a_relay_that_dies_in_an_outage_condemns_nobody(stage: Stage) -> None:
    await stage.write(("a", "a"))
    for _ in range(5):
        session = await stage.entered()
        assert (await stage.run(session.tick(), down())).outage is not None
        await stage.expire(session)
    await stage.drain(await stage.entered())
    assert stage.broker.names == ["a"]


async def test_an_outage_that_is_raised_is_an_outage_too(stage: Stage) -> None:
    await stage.write(("a", "a"), ("b", "b"))

    def answer(message: Message) -> Confirm:
        raise BrokerUnavailable("no connection")

    stage.broker.answer = answer
    sent = await stage.run((await stage.entered()).tick())
    assert isinstance(sent.outage, BrokerUnavailable)
    assert len(stage.broker.calls) == 1
    assert await stage.fetch(ATTEMPTS) == [(b"a", 0, 0, None), (b"b", 0, 0, None)]


async def test_an_adapter_that_answers_for_too_few_has_confirmed_nothing(stage: Stage) -> None:
    class Terse(ScriptedBroker):
        async def publish(self, messages: object) -> list[Confirm]:
            return [None]

    await stage.write(("a", "a"), ("b", "b"))
    sent = await stage.run((await stage.entered()).tick(), Terse())
    assert "1 answers for 2" in str(sent.outage)
    assert await stage.waiting() == 2


# --- the lease ----------------------------------------------------------------------------------------------


async def test_a_buried_relay_claims_nothing_and_learns_of_it(stage: Stage) -> None:
    session = await stage.entered()
    await stage.expire(session)
    other = await stage.entered()
    await stage.write(("a", "a"))
    assert (await stage.run(session.tick())).claimed == 0
    assert await stage.run(session.renew_and_rebalance()) is None
    assert session.expired
    assert (await stage.run(other.tick())).claimed == 1


async def test_a_relay_whose_lease_ran_out_unnoticed_goes_on(stage: Stage) -> None:
    session = await stage.entered()
    await stage.expire(session)
    await stage.write(("a", "a"))
    assert (await stage.run(session.tick())).claimed == 1
    rebalanced = await stage.run(session.renew_and_rebalance())
    assert rebalanced.buckets == 64


async def test_a_long_batch_renews_its_lease_between_waves(stage: Stage) -> None:
    await stage.write(*((str(number), "k") for number in range(4)))
    session = await stage.entered(batch_max=640, lease_s=0.5)
    other = stage.session()
    rebalanced = []

    async def time_passes() -> None:
        session._leased_at -= 0.4
        if len(stage.broker.calls) == 3:  # renewed by now, whatever was left of it at first
            rebalanced.append(await stage.run(other.enter()))

    await stage.expire(session)
    stage.broker.before = time_passes
    sent = await stage.run(session.tick())
    assert len(sent.confirmed) == 4
    assert not session.expired
    assert rebalanced[0].buckets == 0


async def test_a_relay_that_was_buried_between_waves_publishes_nothing_more(stage: Stage) -> None:
    await stage.write(("a1", "a"), ("a2", "a"), ("b1", "b"))
    session = await stage.entered(batch_max=640)

    async def time_passes() -> None:
        session._leased_at -= 60
        await stage.expire(session)
        await stage.entered()

    stage.broker.before = time_passes
    sent = await stage.run(session.tick())
    assert session.expired
    assert sorted(stage.broker.names) == ["a1", "b1"]
    assert len(sent.confirmed) == 2
    assert await stage.waiting() == 1


async def test_a_relay_told_to_stop_sends_nothing_after_what_is_in_flight(stage: Stage) -> None:
    await stage.write(("a1", "a"), ("a2", "a"))
    session = await stage.entered(batch_max=640)
    session.stopping = True
    await stage.run(session.tick())
    assert stage.broker.names == ["a1"]
    await stage.run(session.leave())
    await stage.drain(await stage.entered())
    assert stage.broker.names == ["a1", "a2"]
    assert await stage.fetch("SELECT count(*) FROM onefold_outbox WHERE started > 0") == [(0,)]


async def test_what_was_sent_while_the_database_was_away_is_marked_by_the_next_tick(stage: Stage) -> None:
    await stage.write(("a", "a"), ("b", "b"))
    session = await stage.entered()
    cut = Boundaries()

    def lose(crossing: Crossing) -> None:
        if stage.broker.calls:
            raise ConnectionLost("cut")

    cut.act = lose
    whole = stage.database
    stage.database = cut.around_async(whole)
    with pytest.raises(ConnectionLost):
        await stage.run(session.tick())
    stage.database = whole
    assert await stage.waiting() == 2
    sent = await stage.run(session.tick())
    assert len(sent.confirmed) == 2
    assert await stage.waiting() == 0
    assert len(stage.broker.calls) == 1


# --- buckets ------------------------------------------------------------------------------------------------


async def test_relays_share_the_buckets_fairly_and_take_over_from_the_dead_and_the_leaving(stage: Stage) -> None:
    one = await stage.entered()
    two, three = await stage.entered(), await stage.entered()
    assert await held(stage) == {one.relay: 64}
    for _ in range(2):
        for session in (one, two, three):
            await stage.run(session.renew_and_rebalance())
    assert sorted((await held(stage)).values()) == [21, 21, 22]
    await stage.run(two.leave())
    assert await held(stage) == {one.relay: 32, three.relay: 32}
    await stage.expire(one)
    await stage.run(three.renew_and_rebalance())
    assert await held(stage) == {three.relay: 64}
    await stage.run(three.leave())
    assert await held(stage) == {None: 64}
    assert await stage.fetch("SELECT count(*) FROM onefold_relay") == [(0,)]


async def held(stage: Stage) -> dict[str | None, int]:
    return {row[0]: row[1] for row in await stage.fetch("SELECT relay, count(*) FROM onefold_bucket GROUP BY relay")}


async def test_a_bucket_is_handed_over_without_a_moment_of_nobody_s(stage: Stage) -> None:
    one, two = await stage.entered(), await stage.entered()
    await stage.run(one.renew_and_rebalance())
    assert await held(stage) == {one.relay: 32, two.relay: 32}
    await stage.write(*((str(number), f"k{number}") for number in range(200)))
    sent = [await stage.run(session.tick()) for session in (one, two)]
    assert sum(tick.claimed for tick in sent) == 200
    assert min(tick.claimed for tick in sent) > 0


def test_a_relay_gives_away_its_own_surplus_only() -> None:
    owners = {0: "a", 1: "a", 2: "a", 3: "a", 4: "gone", 5: None}
    assert assign_buckets("b", ["a", "b"], owners) == {4: "b", 5: "b"}
    assert assign_buckets("a", ["a", "b"], owners) == {3: "b", 4: "b", 5: "b"}
    assert assign_buckets("a", ["a", "b"], owners, leaving=True) == dict.fromkeys(range(6), "b")
    assert assign_buckets("a", ["a"], owners, leaving=True) == dict.fromkeys(range(5))
    assert assign_buckets("a", ["a"], dict.fromkeys(range(6), "a")) == {}


# --- the rest -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [("lease_s", 0.1), ("batch_max", 0), ("batch_max", 20_000), ("keep_published_s", -1), ("attempts_max", 0)],
)
def test_settings_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{field}={value}"):
        RelayConfig(**{field: value})


async def test_a_lane_without_a_broker_says_so(stage: Stage) -> None:
    async def publish() -> None:
        await Now()
        await Publish([])

    with pytest.raises(ProgrammerError, match="no broker"):
        await run_async(publish(), TaskExecutor(stage.database))


def test_waves_keep_each_stream_s_order() -> None:
    def row(position: int, stream: bytes | None) -> tuple[object, ...]:
        return (0, position, stream, "id", "s", "t", None, None, None, "", "", "{}", b"", 0, 0, None, None)

    rows = [read(row(number, stream)) for number, stream in enumerate([b"a", None, b"b", b"a", None, b"a", b"b"])]
    assert [[row.position for row in wave] for wave in rounds(rows)] == [[0, 1, 2, 4], [3, 6], [5]]
