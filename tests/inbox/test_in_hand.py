"""A failed message that a process has started is that process's until it is settled or another has taken it: what is
late writes nothing over the other's counts, runs nothing that is not its own, and no message waits for ever."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onefold._inbox.catching_up import put_back, run_in_one_go
from onefold._inbox.discard_and_skip import discard, resume_at
from onefold._inbox.failed_messages import take, take_run
from onefold._inbox.handling import Inbox
from onefold._inbox.in_hand import give_up, renew_in_hand, wake_stranded
from onefold._inbox.redrive import Filter, redrive
from onefold._inbox.stored_message import FailedMessage, stored_from_delivery
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry.consumer_events import InboxEvent
from onefold._kernel.transaction import Transaction
from onefold.telemetry import DeadLettered, Duplicate, Failed, Handled, Parked
from tests.inbox.backends import Backend, delivery, message


def version(number: int) -> Message:
    return message(f"m{number}", key="k", version=number)


async def nothing() -> None:
    """Nothing happens meanwhile."""


class Stage:
    """Two processes with one consumer. Its handler fails for what is `bad`."""

    def __init__(self, backend: Backend, **settings: Any) -> None:
        self.backend = backend
        self.bad: set[str] = set()
        self.during: Callable[[], Awaitable[None]] = nothing
        self.a, self.b = (backend.inbox(self._handler, **settings) for _ in range(2))

    async def _handler(self, given: Message, tx: Transaction[Any]) -> None:
        self.backend.calls.append(given.id)
        await self.during()
        if given.id in self.bad:
            raise RuntimeError("as you wish")
        await self.backend.write(tx, given.id)

    async def fail(self, *messages: Message) -> None:
        """Version 1 is handled; of these the first fails, and those behind it wait."""
        if messages[0].version is not None:
            assert isinstance(await self.backend.deliver(self.a, version(1)), Handled)
        self.bad = {messages[0].id}
        assert isinstance(await self.backend.deliver(self.a, messages[0]), Failed)
        for each in messages[1:]:
            assert isinstance(await self.backend.deliver(self.a, each), Parked)
        self.backend.calls.clear()

    async def take(self, inbox: Inbox, *, suspects: bool = False) -> list[FailedMessage]:
        await self.backend.hours_pass()
        found: list[FailedMessage] = await self.backend.flow(
            take(inbox, 1, suspects=suspects, listener=self.backend.events.append)
        )
        return found

    async def run(self, inbox: Inbox, failed_message: FailedMessage) -> InboxEvent:
        executor, tx = self.backend.executor()
        return await run_async(inbox.run_failed(failed_message, tx), executor)

    async def run_all(self) -> None:
        """Nothing fails any more, and hours pass."""
        self.bad = set()
        for _ in range(3):
            await self.backend.hours_pass()
            await self.backend.run_due(self.b)

    async def counts(self, name: str) -> tuple[int, int, bool]:
        """Started, failed, and whether it is due by time."""
        kept = (await self.backend.failed_messages())[name]
        return kept.started, kept.failed, kept.due_in_s is not None


async def test_a_version_that_was_taken_over_while_its_run_lasted_does_not_stop_its_stream(backend: Backend) -> None:
    stage = Stage(backend, order="strict")
    await stage.fail(version(2), version(3))
    await backend.hours_pass()
    run = await backend.flow(take_run(stage.a, stored_from_delivery(delivery(version(1)))))
    assert [each.id for each in run] == ["m2", "m3"]
    # The run takes longer than the lease of what it started.
    await backend.hours_pass()
    taken = [each for _ in run for each in await backend.flow(take(stage.b, 1, suspects=True))]
    [third] = [each for each in taken if each.id == "m3"]
    assert isinstance(await stage.run(stage.a, run[0]), Failed | Duplicate)
    await backend.flow(put_back(stage.a, run[1:]))
    assert isinstance(await stage.run(stage.b, third), Parked)
    await stage.run_all()
    assert (await backend.effects(), await backend.failed_messages()) == (["m1", "m2", "m3"], {})


async def test_a_suspect_that_comes_before_its_turn_runs_when_its_turn_comes(backend: Backend) -> None:
    stage = Stage(backend, order="strict")
    await stage.fail(version(2), version(3))
    await backend.hours_pass()
    # The process that started both dies.
    assert len(await backend.flow(take_run(stage.a, stored_from_delivery(delivery(version(1)))))) == 2
    await backend.hours_pass()
    suspects = [each for _ in range(2) for each in await backend.flow(take(stage.b, 1, suspects=True))]
    [third] = [each for each in suspects if each.id == "m3"]
    assert isinstance(await stage.run(stage.b, third), Parked)
    # That it was at hand when a process died still counts; that it was looked at does not.
    assert await stage.counts("m3") == (1, 0, False)
    await stage.run_all()
    assert (await backend.effects(), await backend.failed_messages()) == (["m1", "m2", "m3"], {})


async def strand(backend: Backend, stage: Stage) -> None:
    """Version 3 as releases before this one could leave it: started, without a lease, and its turn has come."""
    await stage.fail(version(2), version(3))
    column = "due_at" if backend.dialect == "postgres" else "due_at_ms"
    await backend.change("DELETE FROM onefold_letter WHERE message_id = 'm2'")
    await backend.change(f"UPDATE onefold_letter SET started = 1, {column} = NULL WHERE message_id = 'm3'")
    await backend.change("UPDATE onefold_progress SET version = 2")
    await stage.run_all()
    assert backend.calls == []


async def test_a_stranded_version_is_run_when_a_person_resumes_its_stream(backend: Backend) -> None:
    stage = Stage(backend, order="strict")
    await strand(backend, stage)
    await backend.flow(resume_at(backend.dialect, "billing", "m3", actor="ann"))
    await stage.run_all()
    assert (await backend.effects(), await backend.failed_messages()) == (["m1", "m3"], {})


async def test_a_stranded_version_is_found_without_a_person(backend: Backend) -> None:
    stage = Stage(backend, order="strict")
    await strand(backend, stage)
    await backend.flow(wake_stranded(stage.b))
    await stage.run_all()
    assert (await backend.effects(), await backend.failed_messages()) == (["m1", "m3"], {})


# --- what a process took, and comes to late ----------------------------------------------------------------------


async def discard_it(stage: Stage) -> None:
    await stage.backend.flow(discard(stage.backend.dialect, "billing", ("m2",), actor="ann", force=True))


async def bury_it(stage: Stage) -> None:
    await stage.backend.change("UPDATE onefold_letter SET state = 'dead' WHERE message_id = 'm2'")


async def take_it(stage: Stage) -> None:
    assert [each.id for each in await stage.take(stage.b, suspects=True)] == ["m2"]


async def let_it_fail(stage: Stage) -> None:
    [taken] = await stage.take(stage.b, suspects=True)
    assert isinstance(await stage.run(stage.b, taken), Failed)
    stage.backend.calls.clear()


MEANWHILE = [discard_it, bury_it, take_it, let_it_fail]


@pytest.mark.parametrize("order", ["none", "strict", "latest"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
async def test_what_was_taken_and_is_another_s_by_now_is_not_run(
    backend: Backend, order: str, meanwhile: Callable[[Stage], Any]
) -> None:
    stage = Stage(backend, order=order)
    await stage.fail(version(2))
    [mine] = await stage.take(stage.a)
    await meanwhile(stage)
    before = await backend.failed_messages()
    stage.bad = set()
    assert isinstance(await stage.run(stage.a, mine), Duplicate)
    after = await backend.failed_messages()
    assert backend.calls == []
    assert {each: after[each].started for each in after} == {each: before[each].started for each in before}
    # The control: what is still its own runs.
    if meanwhile is take_it:
        [left] = (await backend.failed_messages()).values()
        assert isinstance(await stage.run(stage.b, left), Handled)


@pytest.mark.parametrize("meanwhile", MEANWHILE)
async def test_a_run_of_which_one_is_another_s_by_now_is_not_made_in_one_go(
    backend: Backend, meanwhile: Callable[[Stage], Any]
) -> None:
    stage = Stage(backend, order="strict")
    await stage.fail(version(2), version(3))
    await backend.hours_pass()
    run = await backend.flow(take_run(stage.a, stored_from_delivery(delivery(version(1)))))
    await meanwhile(stage)
    executor, tx = backend.executor()
    assert await run_async(run_in_one_go(stage.a, run, tx), executor) == []
    assert (backend.calls, await backend.effects()) == ([], ["m1"])


async def test_what_is_given_up_late_leaves_the_count_of_the_process_that_has_it(backend: Backend) -> None:
    stage = Stage(backend)
    await stage.fail(message("m2"))
    [mine] = await stage.take(stage.a)
    [taken] = await stage.take(stage.b, suspects=True)
    stage.a.abandon([mine])
    await backend.flow(give_up(stage.a))
    assert await stage.counts("m2") == (taken.started, taken.failed, True)
    stage.bad = set()
    assert isinstance(await stage.run(stage.b, taken), Handled)


async def test_a_handler_that_fails_late_is_no_death_of_the_process_that_was_to_take_over(
    on_postgres: Backend,
) -> None:
    """Each time its lease runs out before it fails: it has failed, and killed no process. On SQLite no other
    process writes while it runs."""
    backend = on_postgres
    stage = Stage(backend, attempts=20)
    await stage.fail(message("m2"))
    for failed in range(1, 6):
        [mine] = await stage.take(stage.a)
        waiting: list[FailedMessage] = []

        async def take_over(waiting: list[FailedMessage] = waiting) -> None:
            waiting += await stage.take(stage.b, suspects=True)

        stage.during = take_over
        assert isinstance(await stage.run(stage.a, mine), Failed)
        stage.during = nothing
        assert await stage.counts("m2") == (failed + 1, failed + 1, True)
        for each in waiting:
            assert isinstance(await stage.run(stage.b, each), Duplicate)
    await stage.run_all()
    assert not any(isinstance(event, DeadLettered) for event in backend.events)
    assert await backend.effects() == ["m2"]


@pytest.mark.parametrize("order", ["none", "strict", "latest"])
async def test_what_is_discarded_while_it_runs_stays_discarded_when_it_fails(
    on_postgres: Backend, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """On SQLite no other process writes while it runs."""
    caplog.set_level("INFO", "onefold.consumer")
    stage = Stage(on_postgres, order=order)
    await stage.fail(version(2))
    [mine] = await stage.take(stage.a)
    stage.during = lambda: discard_it(stage)
    assert isinstance(await stage.run(stage.a, mine), Duplicate)
    assert (on_postgres.calls, await on_postgres.failed_messages()) == (["m2"], {})
    assert "message m2 on 'order.placed' was discarded while its handler ran, and has failed" in caplog.text
    # The control: a delivery that fails has no row yet.
    stage.during = nothing
    stage.bad = {"m3"}
    assert isinstance(await on_postgres.deliver(stage.a, message("m3", key="l", version=1)), Failed)
    assert list(await on_postgres.failed_messages()) == ["m3"]


# --- leases ------------------------------------------------------------------------------------------------------


async def test_what_is_in_hand_is_renewed_and_no_other_process_takes_it(backend: Backend) -> None:
    stage = Stage(backend)
    await stage.fail(message("m2"))
    [mine] = await stage.take(stage.a)
    await backend.hours_pass()
    await backend.flow(renew_in_hand(stage.a))
    for suspects in (False, True):
        assert await backend.flow(take(stage.b, 1, suspects=suspects)) == []
    stage.bad = set()
    assert isinstance(await stage.run(stage.a, mine), Handled)
    assert not stage.a.in_hand


async def test_what_another_process_has_by_now_is_not_renewed(backend: Backend) -> None:
    stage = Stage(backend)
    await stage.fail(message("m2"))
    assert len(await stage.take(stage.a)) == 1
    assert len(await stage.take(stage.b, suspects=True)) == 1
    await backend.hours_pass()
    await backend.flow(renew_in_hand(stage.a))
    assert len(await backend.flow(take(stage.b, 1, suspects=True))) == 1


async def test_what_a_process_that_died_had_is_no_longer_renewed_and_taken(backend: Backend) -> None:
    """The control of the renewals."""
    stage = Stage(backend)
    await stage.fail(message("m2"))
    assert len(await stage.take(stage.a)) == 1
    assert [each.started for each in await stage.take(stage.b, suspects=True)] == [3]


async def test_a_redriven_message_that_an_earlier_start_still_waits_with_is_run_once(backend: Backend) -> None:
    stage = Stage(backend)
    await stage.fail(message("m2"))
    [mine] = await stage.take(stage.a)
    await backend.change("UPDATE onefold_letter SET state = 'dead', died_at = now()" if backend.dialect == "postgres"
                         else "UPDATE onefold_letter SET state = 'dead', died_at_ms = 4000000000000")  # fmt: skip
    await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="ann"))
    stage.bad = set()
    assert isinstance(await stage.run(stage.a, mine), Duplicate)
    await stage.run_all()
    assert (backend.calls, await backend.effects()) == (["m2"], ["m2"])
