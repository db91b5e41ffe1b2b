"""What people see of an outbox: page by page, by key, by correlation id; and what they do about what is stuck."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from onefold import Onefold
from onefold._app.migrations import MIGRATIONS
from onefold._inbox.message_traces import trace_messages
from onefold._kernel.effects import Flow
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold._outbox import event_lists
from onefold._outbox.event_lists import (
    EventPage,
    act_on_stopped,
    list_dead_events,
    list_retrying,
    list_waiting,
    list_waiting_for,
    look_at_key,
    trace_events,
)
from onefold._outbox.status_report import Chosen
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate
from tests.upgrade.places import rows

T = TypeVar("T")

TRACED = {"correlation-id": "c-1"}


class Place:
    """An outbox to write into, to change by hand and to ask."""

    def __init__(self, address: str) -> None:
        self.address = address
        with closing(sync_database(address)) as database:
            run(migrate(database.dialect, MIGRATIONS[database.dialect]), ThreadExecutor(database))
            self.dialect = database.dialect
        self.once = Onefold(address, source="shop")

    def publish(self, *topics: str, key: str | None = None, **settings: Any) -> list[str]:
        with self.once.transaction() as tx:
            return [tx.publish(topic, {}, key=key, **settings) for topic in topics]

    def ask(self, flow: Callable[[str], Flow[T]]) -> T:
        return run(flow(self.dialect), ThreadExecutor(self.once._database))

    def stop(self, event_id: str, *, dead: bool, due_s: int = 60) -> None:
        """As a relay leaves an event that was refused."""
        if self.dialect == "postgres":
            due = "'infinity'" if dead else f"now() + interval '{due_s} seconds'"
            died = "now()" if dead else "NULL"
            change = f"due_at = {due}, died_at = {died}"
        else:
            due = str(2**62) if dead else f"(strftime('%s', 'now') + {due_s}) * 1000"
            change = f"due_at_ms = {due}, died_at_ms = {'1780000000000' if dead else 'NULL'}"
        rows(
            self.address,
            f"UPDATE onefold_outbox SET {change}, error = 'no', started = 3, finished = 3 WHERE id = '{event_id}'",
        )

    def publish_and_keep(self, event_id: str) -> None:
        moment = "published_at = now()" if self.dialect == "postgres" else "published_at_ms = 1780000000000"
        rows(self.address, f"UPDATE onefold_outbox SET {moment} WHERE id = '{event_id}'")


@pytest.fixture(params=["postgres", "sqlite"])
def place(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[Place]:
    found = Place(str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn")))
    yield found
    found.once.close()


def ids_of(page: EventPage) -> list[str]:
    return [event.id for event in page.events]


def failed_message(place: Place, name: str, headers: Mapping[str, str]) -> str:
    """The INSERT of one."""
    no_data = "''" if place.dialect == "postgres" else "x''"
    return (
        "INSERT INTO onefold_letter (consumer, message_id, state, headers, data, envelope, reason, started, "
        f"failed, history) VALUES ('mailer', '{name}', 'waiting', '{json.dumps(headers)}', {no_data}, "
        "'{}', 'boom', 1, 1, '[]')"
    )


def walk(place: Place, flow: Callable[..., Flow[EventPage]], limit: int = 2) -> list[str]:
    """All pages of a list, one after the other."""
    found: list[str] = []
    after: str | None = None
    while True:
        page = place.ask(lambda dialect: flow(dialect, after=after, limit=limit))  # noqa: B023
        found += ids_of(page)
        if page.after is None:
            return found
        after = page.after


def test_what_waits_is_listed_page_by_page_the_oldest_first(place: Place) -> None:
    published = [place.publish("orders", key=str(number % 3) if number % 2 else None)[0] for number in range(7)]
    assert walk(place, list_waiting) == published
    assert walk(place, list_waiting, limit=7) == published
    [event] = place.ask(lambda dialect: list_waiting(dialect, limit=1)).events
    assert (event.topic, event.source, event.state, event.attempts) == ("orders", "shop", "waiting", 0)
    assert (event.data_bytes, event.content_type) == (2, "application/json")


def test_what_waits_for_one_topic_is_listed(place: Place) -> None:
    place.publish("orders", "orders")
    wanted = place.publish("parcels", "parcels", key="7")
    assert ids_of(place.ask(lambda dialect: list_waiting_for(dialect, "parcels"))) == wanted
    assert len(place.ask(lambda dialect: list_waiting_for(dialect, "orders", limit=1)).events) == 1
    assert ids_of(place.ask(lambda dialect: list_waiting_for(dialect, "other"))) == []


def test_what_is_stuck_is_listed_with_how_much_stands_behind_it(place: Place) -> None:
    [first, *_] = place.publish(*["orders"] * 4, key="7")
    [alone] = place.publish("orders")
    place.publish("orders", key="8")
    place.stop(first, dead=True)
    place.stop(alone, dead=True)
    events = place.ask(list_dead_events).events
    assert [(event.id, event.behind, event.state, event.error) for event in events] == [
        (first, 3, "dead", "no"),
        (alone, 0, "dead", "no"),
    ]
    assert place.ask(list_retrying).events == ()


def test_what_is_tried_again_is_listed_page_by_page_the_next_first(place: Place) -> None:
    ids = place.publish(*["orders"] * 5)
    for number, event_id in enumerate(ids):
        place.stop(event_id, dead=False, due_s=600 - 60 * (number // 2))
    wanted = [ids[4], ids[2], ids[3], ids[0], ids[1]]
    assert walk(place, list_retrying) == wanted
    assert walk(place, list_dead_events) == []
    [event] = place.ask(lambda dialect: list_retrying(dialect, limit=1)).events
    assert event.state == "retrying"
    assert event.due_ms is not None


def test_dead_letters_are_listed_page_by_page(place: Place) -> None:
    ids = place.publish(*["orders"] * 5)
    for event_id in ids:
        place.stop(event_id, dead=True)
    assert walk(place, list_dead_events) == ids


def test_a_place_in_a_list_that_is_nonsense_begins_at_the_beginning(place: Place) -> None:
    [event_id] = place.publish("orders")
    for after in ("", "x", "-1", "9" * 30, "1; DROP TABLE onefold_outbox"):
        assert ids_of(place.ask(lambda dialect: list_waiting(dialect, after=after))) == [event_id]  # noqa: B023


def test_one_key_is_told_with_its_version_and_what_stops_it(place: Place) -> None:
    ids = place.publish(*["orders"] * 4, key="7")
    place.publish("orders", key="8")
    place.stop(ids[0], dead=True)
    found = place.ask(lambda dialect: look_at_key(dialect, "shop", "orders", "7", limit=2))
    assert found.version == 4
    assert [event.id for event in found.stopped] == [ids[0]]
    assert (ids_of(found.waiting), found.waiting.after is None) == (ids[1:3], False)
    rest = place.ask(lambda dialect: look_at_key(dialect, "shop", "orders", "7", after=found.waiting.after))
    assert ids_of(rest.waiting) == ids[3:]
    assert place.ask(lambda dialect: look_at_key(dialect, "shop", "orders", "9")).version is None


def test_events_of_one_correlation_id_are_found_wherever_they_stand(place: Place) -> None:
    place.publish("orders", headers={"correlation-id": "c-2"})
    ids = place.publish("orders", "orders", "orders", "orders", headers=TRACED)
    place.publish_and_keep(ids[0])
    place.stop(ids[1], dead=True)
    place.stop(ids[2], dead=False)
    found = place.ask(lambda dialect: trace_events(dialect, "c-1"))
    assert [(event.id, event.state) for event in found] == list(
        zip(ids, ["published", "dead", "retrying", "waiting"], strict=True)
    )
    assert {event.trace for event in found} == {"c-1"}


def test_an_event_without_a_correlation_id_is_followed_by_its_own(place: Place) -> None:
    [kept, waits] = place.publish("orders", "orders", headers={"tenant": "acme"})
    place.publish_and_keep(kept)
    for event_id in (kept, waits):
        [event] = place.ask(lambda dialect: trace_events(dialect, event_id))  # noqa: B023
        assert (event.id, event.trace) == (event_id, event_id)


def test_what_is_about_to_leave_is_looked_through_only_so_far(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_lists, "LOOKED_AT_MAX", 3)
    place.publish(*["orders"] * 5, headers=TRACED)
    assert len(place.ask(lambda dialect: trace_events(dialect, "c-1"))) == 3


def test_what_became_of_messages_is_found_under_every_consumer(place: Place) -> None:
    [event_id] = place.publish("orders", headers=TRACED)
    for consumer in ("billing", "mailer"):
        with place.once.handling(consumer, event_id, source="shop") as tx:
            assert tx is not None
    with place.once.handling("mailer", "other", source="shop") as tx:
        assert tx is not None
    found = place.ask(lambda dialect: trace_messages(dialect, [("shop", event_id)], "c-1"))
    assert [(each.consumer, each.message_id) for each in found.handled] == [("billing", event_id), ("mailer", event_id)]
    assert found.failed == ()


def test_a_failed_message_is_found_by_its_name_and_by_its_correlation_id(place: Place) -> None:
    """The second where the event has left this outbox, or never was in it."""
    for name, headers in (("m-1", {}), ("m-2", TRACED), ("m-3", {"correlation-id": "c-2"})):
        rows(place.address, failed_message(place, name, headers))
    found = place.ask(lambda dialect: trace_messages(dialect, [("shop", "m-1")], "c-1"))
    assert {(each.consumer, each.failed.row_id) for each in found.failed} == {("mailer", "m-1"), ("mailer", "m-2")}


def test_a_long_correlation_id_keeps_no_event_from_being_stopped_or_kept(place: Place) -> None:
    """An index of Postgres refuses values of more than 2,704 bytes, and with them the row."""
    long = secrets.token_hex(2_000)
    ids = place.publish("orders", "orders", headers={"correlation-id": long})
    place.publish_and_keep(ids[0])
    place.stop(ids[1], dead=True)
    assert [event.id for event in place.ask(lambda dialect: trace_events(dialect, long))] == ids


def test_a_failed_message_with_a_long_correlation_id_is_written_and_found(place: Place) -> None:
    long = secrets.token_hex(5_000)
    rows(place.address, failed_message(place, "m-1", {"correlation-id": long}))
    found = place.ask(lambda dialect: trace_messages(dialect, [("shop", "m-2")], long))
    assert [each.failed.row_id for each in found.failed] == ["m-1"]


#: The second begins as the first does, up to its quotation mark.
ODD = ('a"b', 'a"c', "a\\b", '"')


@pytest.mark.parametrize("odd", ODD)
def test_a_correlation_id_that_json_escapes_is_found_and_no_other(place: Place, odd: str) -> None:
    ids = {name: place.publish("orders", "orders", headers={"correlation-id": name}) for name in ODD}
    for name, (kept, _) in ids.items():
        place.publish_and_keep(kept)
        rows(place.address, failed_message(place, f"m-{ODD.index(name)}", {"correlation-id": name}))
    assert [event.id for event in place.ask(lambda dialect: trace_events(dialect, odd))] == ids[odd]
    found = place.ask(lambda dialect: trace_messages(dialect, [("shop", "m")], odd))
    assert [each.failed.row_id for each in found.failed] == [f"m-{ODD.index(odd)}"]


@pytest.mark.parametrize(("action", "left"), [("retry", "waiting"), ("discard", None)])
def test_what_a_person_does_to_stopped_events_is_in_the_audit(place: Place, action: Any, left: str | None) -> None:
    ids = place.publish("orders", "orders", "parcels")
    for event_id in ids:
        place.stop(event_id, dead=True)

    def act(dialect: str) -> Flow[int]:
        return act_on_stopped(dialect, action, Chosen(ids=(ids[0],)), actor="ann", why="the broker is back")

    assert place.ask(act) == 1
    assert place.ask(act) == 0, "it is not stopped any more"
    assert walk(place, list_dead_events) == ids[1:]
    assert [event.state for event in place.ask(lambda dialect: trace_events(dialect, ids[0]))] == (
        [left] if left else []
    )
    [(actor, said, details), _] = rows(
        place.address, "SELECT actor, action, details FROM onefold_audit WHERE actor = 'ann' ORDER BY id"
    )
    assert (actor, said) == ("ann", f"{action} events")
    assert json.loads(details) == {"ids": [ids[0]], "events": 1, "why": "the broker is back"}
