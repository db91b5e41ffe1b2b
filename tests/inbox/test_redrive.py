"""Redrive is a job: filtered, tried dry, at a rate, in order, cancellable and audited."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onefold._kernel.events import Handled, Redriven
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError
from onefold.inbox.flow import Inbox
from onefold.inbox.letters import tallied
from onefold.inbox.redrive import Filter, Job, LetterNotFit, audited, cancel, discard, job_of, preview, redrive
from tests.inbox.worlds import World, message


class Shop:
    """A consumer that fails until it is repaired, with dead letters m1 to m6."""

    def __init__(self, world: World, inbox: Inbox) -> None:
        self.world = world
        self.inbox = inbox
        self.works = False

    async def redrive(self, **settings: Any) -> Job:
        chosen = settings.pop("chosen", Filter(consumer="billing"))
        settings = {"actor": "ada", "per_second": 1000.0, "listener": self.world.events.append, **settings}
        job: Job = await self.world.flow(redrive(self.world.dialect, chosen, **settings))
        return job

    async def states(self) -> dict[str, str]:
        return {name: letter.state for name, letter in (await self.world.letters()).items()}


@pytest.fixture
async def shop(world: World) -> Shop:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        if not broken.works:
            raise ValueError(f"number {given.id[1:]}")
        await world.handler(given, tx)

    broken = Shop(world, world.inbox(handler, attempts=1))
    for number in range(1, 7):
        topic = "order.placed" if number < 5 else "order.paid"
        await world.deliver(broken.inbox, message(f"m{number}", topic=topic))
    return broken


async def test_a_dry_run_counts_and_changes_nothing(shop: Shop) -> None:
    world = shop.world
    found = await world.flow(preview(world.dialect, Filter(consumer="billing", topic="order.paid")))
    assert (found.letters, found.first) == (2, ["m5", "m6"])
    assert {(group.topic, group.reason) for group in found.groups} == {
        ("order.paid", "ValueError: number 5"),
        ("order.paid", "ValueError: number 6"),
    }
    assert set((await shop.states()).values()) == {"dead"}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({}, ["m1", "m2", "m3", "m4", "m5", "m6"]),
        ({"topic": "order.paid"}, ["m5", "m6"]),
        ({"reason": "number 3"}, ["m3"]),
        ({"reason": "number_3"}, []),
        ({"ids": ("m1", "m6", "nobody")}, ["m1", "m6"]),
        ({"ids": ()}, []),
        ({"since": datetime.now(UTC) + timedelta(hours=1)}, []),
        ({"until": datetime.now(UTC) - timedelta(hours=1)}, []),
        ({"since": datetime.now(UTC) - timedelta(hours=1)}, ["m1", "m2", "m3", "m4", "m5", "m6"]),
    ],
)
async def test_only_what_the_filter_names_is_tried_again(shop: Shop, chosen: dict[str, Any], names: list[str]) -> None:
    world = shop.world
    shop.works = True
    job = await shop.redrive(chosen=Filter(consumer="billing", **chosen))
    assert job.letters == len(names)
    await world.hours_pass()
    events = await world.run_due(shop.inbox)
    assert {type(event) for event in events} <= {Handled}
    assert await world.effects() == names
    assert await world.flow(job_of(world.dialect, job.id)) == Job(job.id, "billing", len(names), False, 0, 0)


async def test_what_is_tried_again_may_fail_again_and_its_history_goes_on(shop: Shop) -> None:
    job = await shop.redrive(chosen=Filter(consumer="billing", ids=("m1",)))
    await shop.world.hours_pass()
    await shop.world.run_due(shop.inbox)
    letter = (await shop.world.letters())["m1"]
    assert (letter.state, len(letter.history), letter.failed) == ("dead", 2, 1)
    assert (await shop.world.flow(job_of(shop.world.dialect, job.id))).dead == 1


async def test_letters_become_due_at_the_rate_and_in_the_order_of_their_streams(world: World) -> None:
    async def handler(given: Message) -> None:
        raise RuntimeError

    inbox = world.inbox(handler, attempts=1)
    for number in (3, 1, 2):
        await world.deliver(inbox, message(f"k{number}", key="k", version=number))
    await world.flow(redrive(world.dialect, Filter(consumer="billing"), actor="ada", per_second=0.1))
    letters = await world.letters()
    waits = [letters[name].due_in_s or 0 for name in ("k1", "k2", "k3")]
    for wait_s, expected_s in zip(waits, (0, 10, 20), strict=True):
        assert expected_s - 5 < wait_s <= expected_s


async def test_a_job_takes_no_more_letters_than_it_may(shop: Shop) -> None:
    assert (await shop.redrive(letters_max=2)).letters == 2
    assert sorted((await shop.states()).items())[:3] == [("m1", "waiting"), ("m2", "waiting"), ("m3", "dead")]


async def test_a_cancelled_job_leaves_dead_what_it_has_not_run(shop: Shop) -> None:
    world = shop.world
    shop.works = True
    job = await shop.redrive(per_second=0.001)
    await world.run_due(shop.inbox)
    after = await world.flow(cancel(world.dialect, job.id, actor="grace"))
    assert (after.cancelled, after.letters, after.waiting) == (True, 6, 0)
    assert await world.effects() == ["m1"]
    assert set((await shop.states()).values()) == {"dead"}
    await world.hours_pass()
    assert await world.run_due(shop.inbox) == []
    assert (await shop.redrive()).letters == 5, "and can be tried again"


async def test_a_cancelled_letter_that_was_parked_meanwhile_can_be_redriven_again(world: World) -> None:
    inbox = world.inbox(order="strict")
    for number in (1, 3):
        await world.deliver(inbox, message(f"k{number}", key="k", version=number))
    died = "died_at = now()" if world.dialect == "postgres" else "died_at_ms = 9000000000000"
    await world.change(f"UPDATE onefold_letter SET state = 'dead', {died}")
    chosen = Filter(consumer="billing")
    job = await world.flow(redrive(world.dialect, chosen, actor="ada"))
    await world.run_due(inbox)
    await world.flow(cancel(world.dialect, job.id, actor="ada"))
    letter = (await world.letters())["k3"]
    assert (letter.state, letter.reason) == ("dead", "version 3 waits for version 2 of its key")
    assert (await world.flow(preview(world.dialect, chosen))).letters == 1


async def test_everything_is_audited_with_who_did_it(shop: Shop) -> None:
    world = shop.world
    job = await shop.redrive()
    await world.flow(cancel(world.dialect, job.id, actor="grace"))
    await world.flow(discard(world.dialect, "billing", ("m1",), actor="joan"))
    lines = await world.flow(audited(world.dialect))
    assert [(line["actor"], line["action"]) for line in lines] == [
        ("joan", "discard"),
        ("grace", "cancel"),
        ("ada", "redrive"),
    ]
    assert lines[0]["details"]["letters"] == [{"id": "m1", "topic": "order.placed"}]
    assert Redriven("billing", "ada", 6) in world.events


@pytest.mark.parametrize("force", [False, True])
async def test_a_waiting_letter_is_discarded_only_by_force(shop: Shop, force: bool) -> None:
    world = shop.world
    await shop.redrive(chosen=Filter(consumer="billing", ids=("m1",)))
    gone = await world.flow(discard(world.dialect, "billing", ("m1", "m2"), actor="ada", force=force))
    assert gone == (2 if force else 1)
    assert ("m1" in await world.letters()) != force


async def test_what_is_too_old_is_not_redriven(shop: Shop) -> None:
    world = shop.world
    ago = "died_at = now() - interval '1 hour'" if world.dialect == "postgres" else "died_at_ms = died_at_ms - 3600000"
    await world.change(f"UPDATE onefold_letter SET {ago} WHERE message_id = 'm1'")
    found = await world.flow(preview(world.dialect, Filter(consumer="billing"), dead_letter_s=1800))
    assert found.letters == 5
    assert sum(group.unfit for group in found.groups) == 1
    assert (await shop.redrive(dead_letter_s=1800)).letters == 5
    assert (await shop.redrive()).letters == 1


async def test_letters_are_counted_by_topic_and_state(shop: Shop) -> None:
    await shop.redrive(chosen=Filter(consumer="billing", ids=("m1",)))
    found = await shop.world.flow(tallied(shop.world.dialect))
    assert [(one.topic, one.state, one.letters) for one in found] == [
        ("order.paid", "dead", 2),
        ("order.placed", "dead", 3),
        ("order.placed", "waiting", 1),
    ]


async def test_a_job_that_nobody_started_cannot_be_cancelled(world: World) -> None:
    with pytest.raises(LetterNotFit, match="no redrive job 'x'"):
        await world.flow(cancel(world.dialect, "x", actor="ada"))


@pytest.mark.parametrize("actor", ["", "  ", "a\nb"])
async def test_nobody_is_nobody(world: World, actor: str) -> None:
    with pytest.raises(ConfigurationError, match="actor="):
        await world.flow(discard(world.dialect, "billing", ("m1",), actor=actor))


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        Filter(consumer="billing", since=datetime(2026, 1, 1))  # noqa: DTZ001
