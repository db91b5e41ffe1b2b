"""Failed messages as people look for them: page by page, the newest first, at a cost that does not grow."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from onefold._inbox.discard_and_skip import discard
from onefold._inbox.failed_lists import (
    ConsumerTally,
    find_failed,
    list_dead,
    list_failed_consumers,
    list_jobs,
    tally_failed,
)
from onefold._inbox.failed_messages import measure_failed
from onefold._inbox.redrive import Filter, cancel, preview, redrive
from onefold._kernel.messages import Message
from onefold.errors import ConfigurationError
from tests.inbox.backends import Backend, message

ALL = Filter(consumer="billing")


@pytest.fixture
async def buried(backend: Backend) -> Backend:
    """With dead letters m1 to m7."""

    async def fail(given: Message) -> None:
        raise ValueError(f"number {given.id[1:]}")

    inbox = backend.inbox(fail, attempts=1)
    for number in range(1, 8):
        await backend.deliver(inbox, message(f"m{number}"))
    return backend


async def pages(backend: Backend, chosen: Filter, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    after = None
    while True:
        page = await backend.flow(list_dead(backend.dialect, chosen, after=after, limit=limit))
        found.append([letter.id for letter in page.letters])
        if page.after is None:
            return found
        after = page.after


async def test_dead_letters_come_page_by_page_the_newest_first(buried: Backend) -> None:
    assert await pages(buried, ALL, 3) == [["m7", "m6", "m5"], ["m4", "m3", "m2"], ["m1"]]
    assert await pages(buried, ALL, 7) == [["m7", "m6", "m5", "m4", "m3", "m2", "m1"]]
    assert await pages(buried, Filter(consumer="billing", reason="number 3"), 3) == [["m3"]]
    assert await pages(buried, Filter(consumer="nothing"), 3) == [[]]


async def test_a_page_goes_on_where_its_last_letter_was_though_that_is_gone(buried: Backend) -> None:
    page = await buried.flow(list_dead(buried.dialect, ALL, limit=2))
    await buried.flow(discard(buried.dialect, "billing", ("m6", "m4"), actor="ada"))
    page = await buried.flow(list_dead(buried.dialect, ALL, after=page.after, limit=2))
    assert [letter.id for letter in page.letters] == ["m5", "m3"]


async def test_letters_that_died_in_one_moment_are_listed_once_each(buried: Backend) -> None:
    moment = "died_at_ms = 1790000000123" if buried.dialect == "sqlite" else "died_at = '2026-07-01 12:00:00.123456Z'"
    await buried.change(f"UPDATE onefold_letter SET {moment}")
    assert await pages(buried, ALL, 2) == [["m7", "m6"], ["m5", "m4"], ["m3", "m2"], ["m1"]]


@pytest.mark.parametrize("after", ["", "x-m1", "-m1", "1" * 19 + "-m1"])
async def test_a_place_that_no_page_gave_is_refused(backend: Backend, after: str) -> None:
    with pytest.raises(ConfigurationError, match="not a position in a list"):
        await backend.flow(list_dead(backend.dialect, ALL, after=after))


async def test_the_consumers_that_have_failed_messages_are_named_once(buried: Backend) -> None:
    assert await buried.flow(list_failed_consumers(buried.dialect)) == ["billing"]
    await buried.change("UPDATE onefold_letter SET consumer = 'archive' WHERE message_id IN ('m1', 'm2')")
    await buried.change("UPDATE onefold_letter SET consumer = 'zoo' WHERE message_id = 'm3'")
    assert await buried.flow(list_failed_consumers(buried.dialect)) == ["archive", "billing", "zoo"]
    await buried.change("DELETE FROM onefold_letter")
    assert await buried.flow(list_failed_consumers(buried.dialect)) == []


async def test_all_consumers_are_tallied_at_once_each_up_to_a_limit(buried: Backend) -> None:
    await buried.change("UPDATE onefold_letter SET consumer = 'zoo' WHERE message_id IN ('m1', 'm2')")
    due = "due_at_ms = 7" if buried.dialect == "sqlite" else "due_at = now()"
    await buried.change(f"UPDATE onefold_letter SET state = 'waiting', {due} WHERE message_id = 'm1'")
    await buried.change(f"UPDATE onefold_letter SET state = 'waiting', {due.split()[0]} = NULL WHERE message_id = 'm3'")
    found = await buried.flow(tally_failed(buried.dialect, count_max=3, consumers_max=2))
    assert found == [ConsumerTally("billing", 0, 1, 3), ConsumerTally("zoo", 1, 0, 1)]
    assert len(await buried.flow(tally_failed(buried.dialect, count_max=3, consumers_max=1))) == 1
    for tally in found:
        one = await buried.flow(measure_failed(buried.dialect, tally.consumer, 3))
        assert one == (tally.waiting, tally.parked, tally.dead)


async def test_one_is_found_with_its_data_and_history(buried: Backend) -> None:
    letter = await buried.flow(find_failed(buried.dialect, "billing", "m2"))
    assert (letter.id, letter.data, letter.history[0]["error"]) == ("m2", b"{}", "ValueError: number 2")
    assert await buried.flow(find_failed(buried.dialect, "billing", "m")) is None
    assert await buried.flow(find_failed(buried.dialect, "other", "m2")) is None


async def test_jobs_are_listed_the_newest_first_with_who_began_them(buried: Backend) -> None:
    for actor, name in (("ada", "m1"), ("bob", "m2")):
        chosen = Filter(consumer="billing", ids=(name,))
        await buried.flow(redrive(buried.dialect, chosen, actor=actor))
    [second, first] = await buried.flow(list_jobs(buried.dialect))
    assert (first.actor, second.actor) == ("ada", "bob")
    assert (first.job.failed_messages, first.job.waiting) == (1, 1)
    assert first.started_ms <= second.started_ms


async def test_a_dry_run_counts_no_further_than_told(buried: Backend) -> None:
    found = await buried.flow(preview(buried.dialect, ALL, count_max=5))
    assert (found.failed_messages, found.first, found.cut) == (5, [], True)
    found = await buried.flow(preview(buried.dialect, ALL, count_max=8))
    assert (found.failed_messages, len(found.first), found.cut) == (7, 7, False)


async def test_a_dry_run_names_the_largest_groups_and_counts_all(backend: Backend) -> None:
    async def fail(given: Message) -> None:
        raise ValueError(f"number {given.id}")

    inbox = backend.inbox(fail, attempts=1)
    for number in range(103):
        await backend.deliver(inbox, message(f"m{number}"))
    found = await backend.flow(preview(backend.dialect, ALL))
    assert (len(found.groups), found.matched, found.failed_messages, found.unfit, found.cut) == (
        100,
        103,
        103,
        0,
        False,
    )
    await asyncio.sleep(0.01)
    found = await backend.flow(preview(backend.dialect, ALL, dead_letter_s=0.001))
    assert (found.matched, found.failed_messages, found.unfit) == (103, 0, 103)


async def test_the_audit_has_why(buried: Backend) -> None:
    job = await buried.flow(redrive(buried.dialect, Filter(consumer="billing", ids=("m1",)), actor="a", why="repaired"))
    await buried.flow(cancel(buried.dialect, job.id, actor="ada", why="not yet"))
    await buried.flow(discard(buried.dialect, "billing", ("m2",), actor="ada", why="  "))
    lines: list[dict[str, Any]] = [
        json.loads(details) for (details,) in await buried.rows("SELECT details FROM onefold_audit ORDER BY id")
    ]
    assert [line.get("why") for line in lines] == ["repaired", "not yet", None]
    with pytest.raises(ConfigurationError, match="at most 1000"):
        await buried.flow(discard(buried.dialect, "billing", ("m3",), actor="ada", why="x" * 1001))
