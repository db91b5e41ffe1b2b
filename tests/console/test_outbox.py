"""The outbox's pages: what waits, what is stuck and what is done about it, and the timeline of a correlation id."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, single_principal
from onefold._console.timeline import draw_timeline
from onefold._inbox.message_traces import MessageTraces
from onefold.fastapi import Tx
from onefold.telemetry import hash_key
from tests.console.browsing import Visitor, csrf_in, hidden_in, text_of
from tests.upgrade.places import rows
from tests.worker.consuming import until


@pytest.fixture
async def once(sqlite_path: Path) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(sqlite_path, source="shop", principal=single_principal)
    yield found
    await found.close()


async def publish(once: AsyncOnefold, *topics: str, key: str | None = None, **settings: Any) -> list[str]:
    async with once.transaction() as tx:
        return [tx.publish(topic, {}, key=key, **settings) for topic in topics]


def kill(path: Path, *ids: str, error: str = "the broker said no") -> None:
    """As a relay leaves an event that was refused too often."""
    for event_id in ids:
        rows(
            str(path),
            f"UPDATE onefold_outbox SET due_at_ms = {2**62}, died_at_ms = 1780000000000, error = '{error}', "
            f"started = 25, finished = 25 WHERE id = '{event_id}'",
        )


def audit(path: Path) -> list[tuple[Any, ...]]:
    return rows(str(path), "SELECT actor, action, details FROM onefold_audit ORDER BY id")


async def test_what_waits_is_shown_by_topic_and_page_by_page(viewer: Visitor, once: AsyncOnefold) -> None:
    await publish(once, *["orders"] * 60, key="7")
    await publish(once, "parcels")
    page = await viewer.get("/outbox")
    assert "61 events wait" in text_of(page)
    assert "orders - 60 parcels - 1" in text_of(page)
    assert page.text.count("/outbox/trace?id=") == 50
    after = page.text.partition('rel="next" href="')[2].partition('"')[0]
    rest = await viewer.get(after.replace("&amp;", "&"))
    assert rest.text.count("/outbox/trace?id=") == 11
    assert "No relay is at work" in text_of(page)
    some = await viewer.get("/outbox?topic=parcels")
    assert some.text.count("/outbox/trace?id=") == 1


async def test_one_event_is_no_events(viewer: Visitor, once: AsyncOnefold) -> None:
    await publish(once, "orders")
    assert "1 event waits" in text_of(await viewer.get("/outbox"))


async def test_one_key_is_shown_with_what_stops_it(viewer: Visitor, once: AsyncOnefold, sqlite_path: Path) -> None:
    [first, *_] = await publish(once, "orders", "orders", "orders", key="7")
    kill(sqlite_path, first)
    page = text_of(await viewer.get("/outbox/key?topic=orders&key=7"))
    assert "The last event of this key has version 3. stopped" in page
    assert "the broker said no" in page
    assert "all published" not in page
    assert "No event was ever published" in text_of(await viewer.get("/outbox/key?topic=orders&key=8"))
    assert "Give a topic, a key" in text_of(await viewer.get("/outbox/key"))
    assert "at most" in text_of(await viewer.get(f"/outbox/key?topic=orders&key={'x' * 2000}"))


async def test_stuck_keys_are_shown_with_how_much_waits_behind(
    viewer: Visitor, once: AsyncOnefold, sqlite_path: Path
) -> None:
    [first, *_] = await publish(once, "orders", "orders", "orders", key="7")
    kill(sqlite_path, first)
    page = await viewer.get("/outbox/stuck")
    assert "orders 7 2 25" in text_of(page)
    assert "/outbox/act" not in page.text, "who may only look is offered no action"
    assert "No event waits for another attempt" in text_of(await viewer.get("/outbox/stuck?show=retrying"))


async def test_who_may_only_look_cannot_act(viewer: Visitor, once: AsyncOnefold, sqlite_path: Path) -> None:
    [event_id] = await publish(once, "orders")
    kill(sqlite_path, event_id)
    assert (await viewer.get(f"/outbox/act?do=discard&id={event_id}")).status_code == 403
    csrf = await viewer.csrf_on("/outbox/stuck")
    answer = await viewer.post("/outbox/act", {"do": "discard", "id": event_id, "reason": "x"}, csrf=csrf)
    assert answer.status_code == 403
    assert audit(sqlite_path) == []
    assert rows(str(sqlite_path), "SELECT count(*) FROM onefold_outbox") == [(1,)]


@pytest.mark.parametrize(("action", "left", "done"), [("retry", 3, "tried again"), ("discard", 2, "discarded")])
async def test_an_event_is_tried_again_or_discarded_after_a_look_and_with_a_reason(
    actor: Visitor, once: AsyncOnefold, sqlite_path: Path, action: str, left: int, done: str
) -> None:
    ids = await publish(once, "orders", "orders", "orders")
    kill(sqlite_path, *ids)
    at = f"/outbox/act?do={action}&id={ids[1]}"
    page = text_of(await actor.get(at))
    assert "1 event will be" in page.replace("  ", " ")
    assert ids[1] in page
    assert rows(str(sqlite_path), "SELECT count(*) FROM onefold_outbox WHERE error IS NOT NULL") == [(3,)]
    refused = await actor.submit(at, "/outbox/act", do=action, id=ids[1], reason=" ")
    assert refused.status_code == 400
    assert "Say why" in text_of(refused)
    assert audit(sqlite_path) == []
    answer = await actor.submit(at, "/outbox/act", do=action, id=ids[1], reason="the broker is back")
    assert answer.status_code == 303
    assert f"Events {done}: 1" in text_of(await actor.get(answer.headers["location"]))
    assert rows(str(sqlite_path), "SELECT count(*) FROM onefold_outbox") == [(left,)]
    [(who, what, details)] = audit(sqlite_path)
    assert (who, what) == ("Anna", f"{action} events")
    assert json.loads(details) == {"ids": [ids[1]], "events": 1, "why": "the broker is back"}
    assert "there is nothing to do" in text_of(await actor.get(at))


async def test_all_dead_letters_of_a_topic_are_tried_again_at_once(
    actor: Visitor, once: AsyncOnefold, sqlite_path: Path
) -> None:
    ids = await publish(once, "orders", "orders", "parcels")
    kill(sqlite_path, *ids)
    at = "/outbox/act?do=retry&topic=orders"
    assert "2 events will be tried" in text_of(await actor.get(at))
    await actor.submit(at, "/outbox/act", do="retry", topic="orders", reason="back")
    left = rows(str(sqlite_path), "SELECT topic FROM onefold_outbox WHERE due_at_ms IS NOT NULL")
    assert left == [("parcels",)]


async def test_events_that_died_after_the_page_was_shown_are_left_alone(
    actor: Visitor, once: AsyncOnefold, sqlite_path: Path
) -> None:
    first, second = await publish(once, "orders", "orders")
    kill(sqlite_path, first)
    at = "/outbox/act?do=discard&topic=orders"
    shown = await actor.get(at)
    kill(sqlite_path, second)
    rows(str(sqlite_path), f"UPDATE onefold_outbox SET died_at_ms = {2**45} WHERE id = '{second}'")
    form = {**hidden_in(shown, "/outbox/act"), "reason": "gone"}
    unbound = {name: value for name, value in form.items() if name != "until"}
    assert (await actor.post("/outbox/act", unbound, csrf=csrf_in(shown))).status_code == 400
    assert len(rows(str(sqlite_path), "SELECT 1 FROM onefold_outbox")) == 2
    assert (await actor.post("/outbox/act", form, csrf=csrf_in(shown))).status_code == 303
    assert rows(str(sqlite_path), "SELECT id FROM onefold_outbox") == [(second,)]


@pytest.mark.parametrize("query", ["", "?do=retry", "?do=drop&id=1", "?id=1"])
async def test_an_action_that_says_too_little_is_refused(actor: Visitor, query: str) -> None:
    assert (await actor.get(f"/outbox/act{query}")).status_code == 400


async def test_what_a_broker_wrote_is_escaped(actor: Visitor, once: AsyncOnefold, sqlite_path: Path) -> None:
    [event_id] = await publish(once, "orders", key="<b>7</b>")
    kill(sqlite_path, event_id, error="<script>alert(1)</script>")
    for path in ("/outbox/stuck", f"/outbox/act?do=retry&id={event_id}", f"/outbox/trace?id={event_id}"):
        page = (await actor.get(path)).text
        assert "<script>alert" not in page
        assert "<b>7</b>" not in page
        assert "&lt;script&gt;alert" in page


# --- the timeline ---------------------------------------------------------------------------------------------


async def test_a_request_is_followed_to_its_event_its_relay_and_its_consumers(
    viewer: Visitor, once: AsyncOnefold, sqlite_path: Path
) -> None:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent()
    async def order(tx: Tx[Any]) -> dict[str, str]:
        await tx.publish("order.placed", {"order": 7}, key="7")
        return {}

    @once.consumer("billing", topic="order.placed")
    async def bill(message: Any, tx: Any) -> None:
        await tx.publish("invoice.sent", {})

    @once.consumer("mailer", topic="invoice.sent", attempts=1)
    async def mail(message: Any) -> None:
        raise LookupError("no such customer")

    once.install(app)
    async with once.relaying(keep_published_s=3600), once.consuming():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            headers = {"Idempotency-Key": "k", "X-Correlation-Id": "checkout-1"}
            assert (await client.post("/orders", headers=headers)).status_code == 201
        await until(lambda: bool(rows(str(sqlite_path), "SELECT 1 FROM onefold_letter WHERE state = 'dead'")))
        await until(
            lambda: rows(str(sqlite_path), "SELECT count(*) FROM onefold_outbox WHERE published_at_ms > 0") == [(2,)]
        )
    page = text_of(await viewer.get("/outbox/trace?id=checkout-1"))
    hops = (
        "request POST /orders done run, and answered 201", f"key hash {hash_key('k')}",
        "order.placed, key 7, version 1", "published to order.placed", "consumer billing done handled", "invoice.sent",
        "published to invoice.sent", "consumer mailer stuck a dead letter",
    )  # fmt: skip
    places = [page.find(hop) for hop in hops]
    assert -1 not in places, (places, page)
    assert "LookupError" in page
    [address] = re.findall(r"/keys/[0-9a-f.]+[^\"]*", (await viewer.get("/outbox/trace?id=checkout-1")).text)
    assert "Done: answered 201" in text_of(await viewer.get(html.unescape(address)))
    rows(str(sqlite_path), "DELETE FROM onefold_record")
    assert "its record is not stored" in text_of(await viewer.get("/outbox/trace?id=checkout-1"))
    assert "Nothing of this id" in text_of(await viewer.get("/outbox/trace?id=checkout-2"))


async def test_an_event_that_waits_is_found_by_its_own_id(viewer: Visitor, once: AsyncOnefold) -> None:
    [event_id] = await publish(once, "orders")
    page = text_of(await viewer.get(f"/outbox/trace?id={event_id}"))
    assert "service shop written committed" in page


async def test_an_id_that_is_too_long_is_refused(viewer: Visitor) -> None:
    assert "at most 512" in text_of(await viewer.get(f"/outbox/trace?id={'x' * 600}"))
    assert "Correlation-Id" in text_of(await viewer.get("/outbox/trace"))


def test_nothing_is_a_timeline_too() -> None:
    timeline = draw_timeline([], MessageTraces(handled=(), failed=()))
    assert (timeline.moments, timeline.span_ms) == ((), 0)
