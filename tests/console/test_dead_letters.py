"""Dead letters in the console: listed, read, compared, redriven, discarded and skipped, each with a reason."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._console.pages.dead_letters_page import PAGE, write_data
from onefold._console.stored_answers import BODY_CHARS_MAX
from onefold._kernel.audit import list_audit
from onefold._kernel.messages import Message
from tests.console.browsing import Visitor, csrf_in, hidden_in, text_of
from tests.inbox.backends import Backend, message


class Failing:
    """A consumer that fails, differently each time."""

    def __init__(self, once: AsyncOnefold) -> None:
        self.backend = Backend(once._for_workers())
        self.calls = 0

    async def fail(self, given: Message) -> None:
        self.calls += 1
        raise ValueError(f"card {self.calls % 2} declined <b>now</b>")

    async def bury(self, *names: str, **more: Any) -> None:
        inbox = self.backend.inbox(self.fail, attempts=1, **more.pop("consumer", {}))
        for name in names:
            await self.backend.deliver(inbox, message(name, data=b'{"card": "4242"}', **more))


@pytest.fixture
def failing(once: AsyncOnefold) -> Failing:
    return Failing(once)


def letter(name: str) -> str:
    return f"/dead-letters/letter?consumer=billing&id={quote(name, safe='')}"


async def audit(once: AsyncOnefold) -> list[tuple[str, str, str | None]]:
    lines = await run_flow(once, list_audit)
    return [(line.actor, line.action, line.details.get("why")) for line in lines]


async def states(failing: Failing) -> dict[str, str]:
    return {name: each.state for name, each in (await failing.backend.failed_messages()).items()}


async def test_without_any_the_page_says_so(viewer: Visitor) -> None:
    assert "No consumer has a failed message." in text_of(await viewer.get("/dead-letters"))


async def test_they_are_listed_by_consumer_with_reason_and_escaped(
    viewer: Visitor, actor: Visitor, failing: Failing
) -> None:
    await failing.bury("m1", "m2")
    assert "declined &lt;b&gt;now&lt;/b&gt;" in (await actor.get("/dead-letters")).text
    page = await viewer.get("/dead-letters")
    assert "billing 2 0 0" in text_of(page)
    assert "4242" not in page.text
    assert "Redrive" not in text_of(page).replace("Redrives so far", "")


async def test_the_role_view_sees_the_class_of_an_error_and_not_what_it_says(
    viewer: Visitor, actor: Visitor, failing: Failing
) -> None:
    """An exception may have said whose card was declined."""
    await failing.bury("m1")
    paths = (
        "/dead-letters", "/dead-letters?contains=declined", letter("m1"), "/dead-letters/redrive?consumer=billing",
        "/dead-letters/discard?consumer=billing", "/outbox/trace?id=m1",
    )  # fmt: skip
    for path in paths:
        seen = await viewer.get(path)
        assert (seen.status_code, "declined" in seen.text) == (200, False), path
        assert "ValueError (its text is for the role act)" in text_of(seen), path
        assert "declined" in (await actor.get(path)).text, path


async def test_what_died_after_the_page_was_shown_is_left_alone(actor: Visitor, failing: Failing) -> None:
    await failing.bury("m1", "m2")
    at = "/dead-letters/discard?consumer=billing"
    shown = await actor.get(at)
    await asyncio.sleep(0.005)  # another millisecond
    await failing.bury("m3")
    fields = hidden_in(shown, "/dead-letters/discard")
    assert "until" in fields
    unbound = {name: value for name, value in fields.items() if name != "until"}
    refused = await actor.post("/dead-letters/discard", {**unbound, "reason": "gone"}, csrf=csrf_in(shown))
    assert (refused.status_code, len(await states(failing))) == (400, 3)
    await actor.post("/dead-letters/discard", {**fields, "reason": "gone"}, csrf=csrf_in(shown))
    assert sorted(await states(failing)) == ["m3"]


async def test_a_filter_and_the_next_page_find_all(viewer: Visitor, failing: Failing) -> None:
    await failing.bury(*(f"m{number:03}" for number in range(PAGE + 2)))
    page = await viewer.get("/dead-letters?consumer=billing")
    assert page.text.count("/dead-letters/letter?") == PAGE
    [following] = [part.partition('"')[0] for part in page.text.split('rel="next" href="')[1:]]
    rest = await viewer.get(following.replace("&amp;", "&"))
    assert rest.text.count("/dead-letters/letter?") == 2
    assert "None matches." in text_of(await viewer.get("/dead-letters?consumer=billing&topic=other"))


async def test_one_shows_its_attempts_side_by_side_and_hides_its_data(actor: Visitor, failing: Failing) -> None:
    await failing.bury("m1")
    await actor.submit("/dead-letters/redrive?consumer=billing", "/dead-letters/redrive", consumer="billing",
                       rate="1000", limit="10", reason="try it once more")  # fmt: skip
    await failing.backend.hours_pass()
    await failing.backend.run_due(failing.backend.inbox(failing.fail, attempts=1))
    page = await actor.get(letter("m1"))
    text = text_of(page)
    assert "dead It is not tried again" in text
    assert "-ValueError: card 1 declined" in text
    assert "+ValueError: card 0 declined" in text
    assert "4242" not in page.text
    same = await actor.get(letter("m1") + "&first=1&second=1")
    assert "failed in the same way" in text_of(same)


async def test_of_a_traceback_the_last_frames_come_first_and_of_the_same_failure_none(
    actor: Visitor, failing: Failing
) -> None:
    await failing.bury("m1")
    failing.calls = 0  # the next failure is the same
    await actor.submit("/dead-letters/redrive?consumer=billing", "/dead-letters/redrive", consumer="billing",
                       rate="1000", limit="10", reason="try it once more")  # fmt: skip
    await failing.backend.hours_pass()
    await failing.backend.run_due(failing.backend.inbox(failing.fail, attempts=1))
    page = await actor.get(letter("m1"))
    assert "1 failed since its last redrive" in text_of(page)
    shown, *folded = page.text.partition("<h2>Attempts")[2].partition("<h2>Headers")[0].split("<details>")
    assert len(folded) <= 2
    assert shown.count("  File ") == 2
    assert "in fail" in shown


async def test_that_a_key_goes_on_is_offered_only_where_the_consumer_has_order(
    actor: Visitor, failing: Failing, once: AsyncOnefold
) -> None:
    @once.consumer("billing", topic="orders")
    async def bill(given: Message) -> None: ...

    await failing.bury("m1", key="k", version=1)
    assert "Go on without it" not in text_of(await actor.get(letter("m1")))


async def test_its_data_is_shown_to_those_who_may_act_and_that_is_audited(
    actor: Visitor, viewer: Visitor, failing: Failing, once: AsyncOnefold
) -> None:
    await failing.bury("m1")
    shown = await actor.submit(letter("m1"), "/dead-letters/letter", consumer="billing", id="m1")
    assert json.dumps({"card": "4242"}, indent=2).replace('"', "&#34;") in shown.text
    assert await audit(once) == [("Anna", "show data", None)]
    refused = await viewer.submit(letter("m1"), "/dead-letters/letter", consumer="billing", id="m1")
    assert refused.status_code == 403
    assert "4242" not in refused.text


async def test_a_redrive_is_tried_dry_then_started_followed_and_cancelled(
    actor: Visitor, failing: Failing, once: AsyncOnefold
) -> None:
    await failing.bury("m1", "m2", "m3")
    at = "/dead-letters/redrive?consumer=billing"
    assert "3 messages, first m1 , m2 , m3" in text_of(await actor.get(at))
    assert set((await states(failing)).values()) == {"dead"}
    fields = {"consumer": "billing", "rate": "0.01", "limit": "2"}
    unsaid = await actor.submit(at, "/dead-letters/redrive", **fields)
    assert (unsaid.status_code, "Say why" in text_of(unsaid)) == (400, True)
    for rate in ("0", "nan", "inf", "quick"):
        wrong = await actor.submit(at, "/dead-letters/redrive", **{**fields, "rate": rate}, reason="x")
        assert (wrong.status_code, "The rate must be" in text_of(wrong)) == (400, True), rate
    assert set((await states(failing)).values()) == {"dead"}
    begun = await actor.submit(at, "/dead-letters/redrive", **fields, reason="the card processor is back")
    assert begun.status_code == 303
    job = begun.headers["location"]
    assert "running 2 of 2 messages wait" in text_of(await actor.get(job))
    assert await states(failing) == {"m1": "waiting", "m2": "waiting", "m3": "dead"}
    await actor.submit(job, job, reason="too early")
    assert "cancelled What was not tried yet is dead again" in text_of(await actor.get(job))
    assert "billing Anna 2" in text_of(await actor.get("/dead-letters/jobs"))
    assert set((await states(failing)).values()) == {"dead"}
    assert await audit(once) == [
        ("Anna", "cancel", "too early"),
        ("Anna", "redrive", "the card processor is back"),
    ]


async def test_a_redrive_does_not_call_handled_what_was_discarded(actor: Visitor, failing: Failing) -> None:
    await failing.bury("m1")
    at = "/dead-letters/redrive?consumer=billing"
    fields = {"consumer": "billing", "rate": "1000", "limit": "10"}
    first = await actor.submit(at, "/dead-letters/redrive", **fields, reason="try it once more")
    await failing.backend.hours_pass()
    await failing.backend.run_due(failing.backend.inbox(failing.fail, attempts=1))
    await actor.submit(
        "/dead-letters/discard?consumer=billing", "/dead-letters/discard", consumer="billing", id="m1", reason="why"
    )
    assert await states(failing) == {}
    shown = text_of(await actor.get(first.headers["location"]))
    assert "ended It has no message any more: each was handled, discarded, or taken by a later redrive." in shown
    assert "Gone 1: handled, discarded, or taken by a later redrive" in shown
    listed = text_of(await actor.get("/dead-letters/jobs"))
    assert "ended" in listed
    assert "all handled" not in listed


async def test_one_or_all_that_fit_are_discarded_with_a_reason(
    actor: Visitor, failing: Failing, once: AsyncOnefold
) -> None:
    await failing.bury("m1", "m2", "m3")
    at = "/dead-letters/discard?consumer=billing&id=m2"
    assert "1 message would be deleted" in text_of(await actor.get(at))
    fields = {"consumer": "billing", "id": "m2"}
    assert (await actor.submit(at, "/dead-letters/discard", **fields)).status_code == 400
    assert sorted(await states(failing)) == ["m1", "m2", "m3"]
    done = await actor.submit(at, "/dead-letters/discard", **fields, reason="a test order")
    assert done.headers["location"] == "/dead-letters?consumer=billing&discarded=1"
    assert sorted(await states(failing)) == ["m1", "m3"]
    at = "/dead-letters/discard?consumer=billing&contains=card+1"
    await actor.submit(at, "/dead-letters/discard", reason="declined for good")
    assert await states(failing) == {}
    assert await audit(once) == [("Anna", "discard", "declined for good"), ("Anna", "discard", "a test order")]
    page = text_of(await actor.get("/audit"))
    assert "consumer billing which reason card 1" in page
    assert "consumer billing failed_messages id m2, topic order.placed" in page
    assert "null" not in page


async def test_a_strict_stream_is_let_go_on(actor: Visitor, failing: Failing, once: AsyncOnefold) -> None:
    await failing.bury("m1", key="o-1", version=1, consumer={"order": "strict"})
    fields = {"consumer": "billing", "id": "m1", "verb": "skip"}
    refused = await actor.submit(letter("m1"), "/dead-letters/move-on", **{**fields, "verb": "resume"}, reason="x")
    assert (refused.status_code, "is not a waiting message ahead" in text_of(refused)) == (400, True)
    done = await actor.submit(letter("m1"), "/dead-letters/move-on", **fields, reason="was paid by hand")
    assert done.status_code == 303
    assert "skipped by Anna" in text_of(await actor.get(letter("m1")))
    assert await audit(once) == [("Anna", "skip", "was paid by hand")]


@pytest.mark.parametrize("path", [letter("m9"), "/dead-letters/letter", "/dead-letters/jobs/m9"])
async def test_what_is_not_there_is_said_to_be_missing(viewer: Visitor, path: str) -> None:
    assert (await viewer.get(path)).status_code == 404


@pytest.mark.parametrize(
    "path", ["/dead-letters/redrive", "/dead-letters/discard", "/dead-letters/move-on", "/dead-letters/jobs/m1"]
)
async def test_those_who_may_only_look_change_nothing(viewer: Visitor, failing: Failing, path: str) -> None:
    await failing.bury("m1")
    fields = {"consumer": "billing", "id": "m1", "rate": "10", "limit": "10", "verb": "skip", "reason": "I want to"}
    assert (await viewer.submit("/dead-letters", path, **fields)).status_code == 403
    assert await states(failing) == {"m1": "dead"}


async def test_a_redrive_that_is_not_there_cannot_be_cancelled(actor: Visitor) -> None:
    answer = await actor.submit("/audit", "/dead-letters/jobs/x", reason="too fast")
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "data", [b'"' + b"x" * 3_000_000 + b'"', b"\xff" * 3_000_000, ("é" * 1_500_000).encode(), b"[1," * 30_000 + b"1"]
)
def test_of_large_data_the_beginning_is_shown(data: bytes) -> None:
    shown = write_data(data)
    assert len(shown) < BODY_CHARS_MAX + 100
    assert ("the beginning of 3,000,0" in shown) == (len(data) >= 3_000_000)


def test_json_that_grows_when_it_is_written_for_people_is_cut_as_well() -> None:
    assert "the beginning of 99,999 bytes" in write_data(b"[" + b"1," * 49_998 + b"1]")
