"""Works and sagas in the console: what waits for a person, and what the person says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._kernel.audit import list_audit
from onefold._kernel.checkout import run_batch, with_connection
from onefold._kernel.effects import Boundary
from onefold._steps.model import Held, RecordedStep, WorkAsk
from onefold._steps.sealing import Sealing
from onefold._steps.unfinished_works import list_works, show_work
from onefold._steps.works import Works
from tests.console.browsing import Visitor, csrf_in, hidden_in, text_of

ASK = WorkAsk(
    digest=b"w" * 16, kind="request", operation="POST /orders", fingerprint=b"f", lease_s=60, retention_s=3600
)
AT = f"/works/{ASK.digest.hex()}"


async def begin(once: AsyncOnefold, digest: bytes = ASK.digest, *, park: str | None = None, left: bool = False) -> None:
    """A work with a phase that is done and a call whose outcome is not known."""
    works = Works(once._database.dialect)
    held = await run_flow(once, lambda _: works.claim(ASK._replace(digest=digest)))
    assert isinstance(held, Held)
    steps = (
        RecordedStep(0, "reserve", "phase", "done", Sealing().seal(b'{"place": "shelf 7"}', b"")),
        RecordedStep(1, "charge", "call", "started", None),
    )
    recorded = [works.sql.record(held, step) for step in steps]
    await run_flow(once, lambda _: with_connection(lambda: run_batch(Boundary.BEGIN, *recorded, Boundary.COMMIT)))
    if park is not None:
        await run_flow(once, lambda _: works.park(held, park))
    if left:
        await run_flow(once, lambda _: works.give_back(held))


async def audit(once: AsyncOnefold) -> list[tuple[str, str, Any]]:
    lines = await run_flow(once, list_audit)
    return [(line.actor, line.action, line.details.get("why")) for line in lines]


async def test_unfinished_works_are_listed_and_those_that_wait_for_a_person(
    viewer: Visitor, once: AsyncOnefold
) -> None:
    assert "all that was begun is finished" in text_of(await viewer.get("/works"))
    await begin(once)
    await begin(once, b"p" * 16, park="the outcome of call 'charge' is unknown")
    text = text_of(await viewer.get("/works"))
    assert "POST /orders running 2 1" in text
    assert "POST /orders parked 2 1 the outcome of call &#39;charge&#39;".replace("&#39;", "'") in text
    assert "running" not in text_of(await viewer.get("/works?parked=1"))
    page = await viewer.get(AT)
    assert "reserve phase done" in text_of(page)
    assert "charge call outcome unknown" in text_of(page)
    assert "shelf 7" not in page.text


async def test_a_work_that_was_left_in_a_call_that_must_not_be_made_again_waits_for_a_person(
    viewer: Visitor, once: AsyncOnefold
) -> None:
    await begin(once, left=True)
    text = text_of(await viewer.get(AT))
    assert "left It waits for a person: its last attempt has ended in a call that must not be made again" in text
    assert "goes on behind its recorded steps" not in text


async def test_results_are_shown_to_those_who_may_act_and_that_is_audited(
    actor: Visitor, viewer: Visitor, once: AsyncOnefold
) -> None:
    await begin(once)
    assert "shelf 7" in (await actor.submit(AT, AT)).text
    assert await audit(once) == [("Anna", "show results", None)]
    assert (await viewer.submit(AT, AT)).status_code == 403


async def test_a_work_goes_on_with_what_the_person_found_out(actor: Visitor, once: AsyncOnefold) -> None:
    await begin(once, park="the outcome of call 'charge' is unknown")
    to = f"{AT}/resume"
    assert (await actor.submit(AT, to, outcome="again")).status_code == 400
    unsaid = await actor.submit(AT, to, reason="it must go on")
    assert "find out whether it was made" in text_of(unsaid)
    wrong = await actor.submit(AT, to, reason="it was paid", outcome="made", result="{paid}")
    assert "The result is not JSON" in text_of(wrong)
    done = await actor.submit(AT, to, reason="it was paid", outcome="made", result='{"state": "paid"}')
    assert "is resumed" in text_of(done)
    work, steps = await run_flow(once, lambda dialect: show_work(dialect, ASK.digest.hex()))
    assert (work.state, steps[1].state) == ("left", "told")
    assert json.loads((steps[1].result or b"")[1:]) == {"state": "paid"}
    assert await audit(once) == [("Anna", "keys resume", "it was paid")]


async def test_what_a_person_says_of_a_call_is_refused_where_another_has_said_it_since(
    actor: Visitor, once: AsyncOnefold
) -> None:
    await begin(once, park="the outcome of call 'charge' is unknown")
    to, shown = f"{AT}/resume", await actor.get(AT)
    await actor.submit(AT, to, reason="it was paid", outcome="made", result='{"state": "paid"}')
    seen = {**hidden_in(shown, actor.root + to), "reason": "I see no payment", "outcome": "again"}
    late = await actor.post(to, seen, csrf=csrf_in(shown))
    assert "was changed meanwhile, and nothing was done now" in text_of(late)
    _, steps = await run_flow(once, lambda dialect: show_work(dialect, ASK.digest.hex()))
    assert steps[1].state == "told"
    assert "is resumed" in text_of(await actor.submit(AT, to, reason="not at all", outcome="again"))


async def test_a_work_is_forgotten_after_its_steps_were_shown(actor: Visitor, once: AsyncOnefold) -> None:
    await begin(once, park="it failed too often")
    text = text_of(await actor.get(f"{AT}/release"))
    assert "reserve (done)" in text
    assert "charge (outcome unknown)" in text
    assert (await actor.submit(f"{AT}/release", f"{AT}/release")).status_code == 400
    await actor.submit(f"{AT}/release", f"{AT}/release", reason="begin anew")
    assert await run_flow(once, list_works) == []
    assert await audit(once) == [("Anna", "keys release", "begin anew")]


async def test_a_work_that_is_being_done_is_left_alone(actor: Visitor, once: AsyncOnefold) -> None:
    await begin(once)
    assert "Resume" not in text_of(await actor.get(AT))
    refused = await actor.submit(AT, f"{AT}/resume", reason="now", outcome="again")
    assert "is running at this moment" in text_of(refused)


@pytest.mark.parametrize("path", ["/works/nothing", f"/works/{'0' * 32}", f"/works/{'0' * 32}/release"])
async def test_what_is_not_there_is_said_to_be_missing(viewer: Visitor, path: str) -> None:
    assert (await viewer.get(path)).status_code == 404


@pytest.mark.parametrize("after", ["nothing", "1-zz", "-", "9" * 20 + "-00"])
async def test_a_place_that_no_page_gave_is_the_beginning(viewer: Visitor, once: AsyncOnefold, after: str) -> None:
    await begin(once)
    assert "POST /orders" in text_of(await viewer.get(f"/works?after={after}"))
