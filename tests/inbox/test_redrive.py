"""Redrive is a job: filtered, tried dry, at a rate, in order, cancellable and audited."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onefold._inbox.discard_and_skip import discard
from onefold._inbox.failed_messages import count_failed
from onefold._inbox.handling import Inbox
from onefold._inbox.redrive import FailedMessageNotFit, Filter, Job, cancel, job_of, preview, redrive
from onefold._kernel.audit import list_audit
from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError
from onefold.telemetry import Handled, Redriven
from tests.inbox.backends import Backend, message


class Shop:
    """A consumer that fails until it is repaired, with dead letters m1 to m6."""

    def __init__(self, backend: Backend, inbox: Inbox) -> None:
        self.backend = backend
        self.inbox = inbox
        self.works = False

    async def redrive(self, **settings: Any) -> Job:
        chosen = settings.pop("chosen", Filter(consumer="billing"))
        settings = {"actor": "ada", "per_second": 1000.0, "listener": self.backend.events.append, **settings}
        job: Job = await self.backend.flow(redrive(self.backend.dialect, chosen, **settings))
        return job

    async def states(self) -> dict[str, str]:
        return {name: failed_message.state for name, failed_message in (await self.backend.failed_messages()).items()}


@pytest.fixture
async def shop(backend: Backend) -> Shop:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        if not broken.works:
            raise ValueError(f"number {given.id[1:]}")
        await backend.handler(given, tx)

    broken = Shop(backend, backend.inbox(handler, attempts=1))
    for number in range(1, 7):
        topic = "order.placed" if number < 5 else "order.paid"
        await backend.deliver(broken.inbox, message(f"m{number}", topic=topic))
    return broken


async def test_a_dry_run_counts_and_changes_nothing(shop: Shop) -> None:
    backend = shop.backend
    found = await backend.flow(preview(backend.dialect, Filter(consumer="billing", topic="order.paid")))
    assert (found.failed_messages, found.first) == (2, ["m5", "m6"])
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
    backend = shop.backend
    shop.works = True
    job = await shop.redrive(chosen=Filter(consumer="billing", **chosen))
    assert job.failed_messages == len(names)
    await backend.hours_pass()
    events = await backend.run_due(shop.inbox)
    assert {type(event) for event in events} <= {Handled}
    assert await backend.effects() == names
    assert await backend.flow(job_of(backend.dialect, job.id)) == Job(job.id, "billing", len(names), False, 0, 0)


async def test_what_is_tried_again_may_fail_again_and_its_history_goes_on(shop: Shop) -> None:
    job = await shop.redrive(chosen=Filter(consumer="billing", ids=("m1",)))
    await shop.backend.hours_pass()
    await shop.backend.run_due(shop.inbox)
    failed_message = (await shop.backend.failed_messages())["m1"]
    assert (failed_message.state, len(failed_message.history), failed_message.failed) == ("dead", 2, 1)
    assert (await shop.backend.flow(job_of(shop.backend.dialect, job.id))).dead == 1


async def test_failed_messages_become_due_at_the_rate_and_in_the_order_of_their_streams(backend: Backend) -> None:
    async def handler(given: Message) -> None:
        raise RuntimeError

    inbox = backend.inbox(handler, attempts=1)
    for number in (3, 1, 2):
        await backend.deliver(inbox, message(f"k{number}", key="k", version=number))
    await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="ada", per_second=0.1))
    failed_messages = await backend.failed_messages()
    waits = [failed_messages[name].due_in_s or 0 for name in ("k1", "k2", "k3")]
    for wait_s, expected_s in zip(waits, (0, 10, 20), strict=True):
        assert expected_s - 5 < wait_s <= expected_s


async def test_a_job_takes_no_more_failed_messages_than_it_may(shop: Shop) -> None:
    assert (await shop.redrive(limit=2)).failed_messages == 2
    assert sorted((await shop.states()).items())[:3] == [("m1", "waiting"), ("m2", "waiting"), ("m3", "dead")]


async def test_a_cancelled_job_leaves_dead_what_it_has_not_run(shop: Shop) -> None:
    backend = shop.backend
    shop.works = True
    job = await shop.redrive(per_second=0.001)
    await backend.run_due(shop.inbox)
    after = await backend.flow(cancel(backend.dialect, job.id, actor="grace"))
    assert (after.cancelled, after.failed_messages, after.waiting) == (True, 6, 0)
    assert await backend.effects() == ["m1"]
    assert set((await shop.states()).values()) == {"dead"}
    await backend.hours_pass()
    assert await backend.run_due(shop.inbox) == []
    assert (await shop.redrive()).failed_messages == 5, "and can be tried again"


async def test_a_cancelled_failed_message_that_was_parked_meanwhile_can_be_redriven_again(backend: Backend) -> None:
    inbox = backend.inbox(order="strict")
    for number in (1, 3):
        await backend.deliver(inbox, message(f"k{number}", key="k", version=number))
    died = "died_at = now()" if backend.dialect == "postgres" else "died_at_ms = 9000000000000"
    await backend.change(f"UPDATE onefold_letter SET state = 'dead', {died}")
    chosen = Filter(consumer="billing")
    job = await backend.flow(redrive(backend.dialect, chosen, actor="ada"))
    await backend.run_due(inbox)
    await backend.flow(cancel(backend.dialect, job.id, actor="ada"))
    failed_message = (await backend.failed_messages())["k3"]
    assert (failed_message.state, failed_message.reason) == ("dead", "version 3 waits for version 2 of its key")
    assert (await backend.flow(preview(backend.dialect, chosen))).failed_messages == 1


async def test_everything_is_audited_with_who_did_it(shop: Shop) -> None:
    backend = shop.backend
    job = await shop.redrive()
    await backend.flow(cancel(backend.dialect, job.id, actor="grace"))
    await backend.flow(discard(backend.dialect, "billing", ("m1",), actor="joan"))
    lines = await backend.flow(list_audit(backend.dialect))
    assert [(line.actor, line.action) for line in lines] == [
        ("joan", "discard"),
        ("grace", "cancel"),
        ("ada", "redrive"),
    ]
    assert lines[0].details["failed_messages"] == [{"id": "m1", "topic": "order.placed"}]
    assert Redriven("billing", "ada", 6) in backend.events


@pytest.mark.parametrize("force", [False, True])
async def test_a_waiting_failed_message_is_discarded_only_by_force(shop: Shop, force: bool) -> None:
    backend = shop.backend
    await shop.redrive(chosen=Filter(consumer="billing", ids=("m1",)))
    gone = await backend.flow(discard(backend.dialect, "billing", ("m1", "m2"), actor="ada", force=force))
    assert gone == (2 if force else 1)
    assert ("m1" in await backend.failed_messages()) != force


async def test_what_is_too_old_is_not_redriven(shop: Shop) -> None:
    backend = shop.backend
    ago = (
        "died_at = now() - interval '1 hour'" if backend.dialect == "postgres" else "died_at_ms = died_at_ms - 3600000"
    )
    await backend.change(f"UPDATE onefold_letter SET {ago} WHERE message_id = 'm1'")
    found = await backend.flow(preview(backend.dialect, Filter(consumer="billing"), dead_letter_s=1800))
    assert found.failed_messages == 5
    assert sum(group.unfit for group in found.groups) == 1
    assert (await shop.redrive(dead_letter_s=1800)).failed_messages == 5
    assert (await shop.redrive()).failed_messages == 1


async def test_failed_messages_are_counted_by_topic_and_state(shop: Shop) -> None:
    await shop.redrive(chosen=Filter(consumer="billing", ids=("m1",)))
    found = await shop.backend.flow(count_failed(shop.backend.dialect))
    assert [(one.topic, one.state, one.failed_messages) for one in found] == [
        ("order.paid", "dead", 2),
        ("order.placed", "dead", 3),
        ("order.placed", "waiting", 1),
    ]


async def test_a_job_that_nobody_started_cannot_be_cancelled(backend: Backend) -> None:
    with pytest.raises(FailedMessageNotFit, match="no redrive job 'x'"):
        await backend.flow(cancel(backend.dialect, "x", actor="ada"))


@pytest.mark.parametrize("actor", ["", "  ", "a\nb"])
async def test_nobody_is_nobody(backend: Backend, actor: str) -> None:
    with pytest.raises(ConfigurationError, match="actor="):
        await backend.flow(discard(backend.dialect, "billing", ("m1",), actor=actor))


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="time zone"):
        Filter(consumer="billing", since=datetime(2026, 1, 1))  # noqa: DTZ001
