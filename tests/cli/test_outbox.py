"""`onefold outbox`: what waits and why, and acting on what is stopped."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from subprocess import CompletedProcess

import pytest

from onefold import Onefold
from onefold._outbox.sql.sqlite import NEVER_MS
from tests.cli.commands import Shop, onefold, told, until

UNROUTED = "no consumer has subscribed to 'order.placed'"


@pytest.fixture
def stopped(shop: Shop) -> tuple[Shop, str]:
    """A shop, and the id of an event that nobody wanted, with another one of its key behind it."""
    first, _ = shop.place("a", "b", key="one")
    shop.publish("order.reminded", [{"order": "a"}], not_before=datetime.now(UTC) + timedelta(hours=1))
    relay_until_one_stays_stopped(shop.onefold, "shop.db")
    return shop, first


def relay_until_one_stays_stopped(command: Callable[..., CompletedProcess[str]], database: str, *options: str) -> None:
    """A relay that ends may have made due again what was stopped, and does not send it any more: another one does."""
    for _ in range(10):
        assert command("relay", "-d", database, *options, "--until-empty").returncode == 1
        if told(command("outbox", "-d", database, "--json"))["stopped"]:
            return
    raise AssertionError("after ten relays no event is stopped")


def test_it_tells_what_waits_what_is_stopped_and_why(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    found = told(shop.onefold("outbox", "--json", ONEFOLD_DATABASE="shop.db"))
    assert (found["waiting"], found["delayed"], found["pending_cut"]) == (1, 1, False)
    assert found["pending"] == [{"topic": "order.placed", "waiting": 1, "destination": None}]
    assert found["oldest_s"] > 0
    assert found["relays"] == []
    [row] = found["stopped"]
    assert (row["id"], row["topic"], row["key"]) == (event_id, "order.placed", "one")
    assert row["attempts"] >= 1
    assert UNROUTED in row["error"]
    assert row["next_try_s"] >= 0


def test_people_are_told_the_same(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    text = shop.onefold("outbox", "-d", "shop.db").stdout
    assert "waiting: 1, the oldest for" in text
    assert "delayed: 1" in text
    assert "no relay is at work" in text
    [line] = [line for line in text.splitlines() if event_id in line]
    assert UNROUTED in line


def test_an_empty_outbox_has_no_lag(shop: Shop) -> None:
    found = told(shop.onefold("outbox", "-d", "shop.db", "--json"))
    assert (found["waiting"], found["oldest_s"], found["stopped"]) == (0, None, [])
    assert "nothing waits; delayed: 0" in shop.onefold("outbox", "-d", "shop.db").stdout


def test_relays_at_work_are_shown_with_their_buckets(shop: Shop) -> None:
    with shop.started("relay", "-d", "shop.db") as relay:
        relay.until_said("64 of 64 buckets")
        [seen] = told(shop.onefold("outbox", "-d", "shop.db", "--json"))["relays"]
        assert seen["buckets"] == 64
        assert 0 < seen["lease_left_s"] <= 30


def test_what_is_set_aside_waits_for_a_person(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    shop.change(f"UPDATE onefold_outbox SET due_at_ms = {NEVER_MS} WHERE id = '{event_id}'")
    assert told(shop.onefold("outbox", "-d", "shop.db", "--json"))["stopped"][0]["next_try_s"] is None
    text = shop.onefold("outbox", "-d", "shop.db").stdout
    assert "dead" in next(line for line in text.splitlines() if event_id in line)


def test_dead_letters_are_listed_retried_and_discarded_by_what_they_have_in_common(shop: Shop) -> None:
    """An event is dead when it was refused as often as it may be."""
    ids = shop.place("a", "b", "c")
    shop.publish("order.reminded", [{"order": "a"}])
    shop.put("refusing")
    assert shop.onefold("relay", "shop:once", "--until-empty", "--attempts", "1").returncode == 1
    listed = told(shop.onefold("outbox", "list", "--dead", "--topic", "order.placed", "-d", "shop.db", "--json"))
    assert sorted(row["id"] for row in listed) == sorted(ids)
    assert {(row["attempts"], row["next_try_s"]) for row in listed} == {(1, None)}
    assert told(shop.onefold("outbox", "list", "--reason", "something else", "-d", "shop.db", "--json")) == []
    assert len(told(shop.onefold("outbox", "list", "--since", "1h", "-d", "shop.db", "--json"))) == 4
    assert "stopped events: 4" in shop.onefold("outbox", "list", "-d", "shop.db").stdout
    retried = shop.onefold("outbox", "retry", "--dead", "--topic", "order.reminded", "-y", "-d", "shop.db")
    assert retried.stdout == "retried: 1\n"
    assert shop.onefold("outbox", "discard", "-y", "-d", "shop.db").returncode == 2
    words = ("outbox", "discard", "--dead", "--reason", "no parcels", "-y", "-d", "shop.db", "--json")
    assert told(shop.onefold(*words)) == {"discarded": 3, "asked": None}
    assert shop.rows("SELECT topic FROM onefold_outbox") == [("order.reminded",)]
    assert shop.onefold(*words).returncode == 1


def test_retry_makes_a_stopped_event_wait_in_its_turn_again(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    assert told(shop.onefold("outbox", "retry", event_id, "--yes", "-d", "shop.db", "--json")) == {
        "retried": 1,
        "asked": 1,
    }
    found = told(shop.onefold("outbox", "-d", "shop.db", "--json"))
    assert (found["waiting"], found["stopped"]) == (2, [])


def test_discard_deletes_only_what_is_stopped(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    [(waiting,)] = shop.rows("SELECT id FROM onefold_outbox WHERE due_at_ms IS NULL")
    answer = shop.onefold("outbox", "-d", "shop.db", "discard", "--yes", event_id, waiting)
    assert answer.stdout == "discarded: 1 of 2; the others are not stopped\n"
    assert shop.rows("SELECT topic FROM onefold_outbox ORDER BY position") == [("order.placed",), ("order.reminded",)]
    assert shop.onefold("outbox", "discard", "--yes", "-d", "shop.db", waiting).returncode == 1


def test_a_database_that_is_named_before_the_verb_wins_over_the_environment(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    words = ("outbox", "-d", "shop.db", "discard", "--yes", event_id)
    assert shop.onefold(*words, ONEFOLD_DATABASE="another.db").stdout == "discarded: 1 of 1\n"


@pytest.mark.parametrize("verb", ["list", "retry", "discard", "cancel"])
def test_help_says_that_the_database_may_come_from_the_environment(verb: str) -> None:
    assert "ONEFOLD_DATABASE" in onefold("outbox", verb, "--help").stdout


def test_a_person_is_asked_first_and_may_say_no(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    words = ("outbox", "discard", event_id, "-d", "shop.db")
    refused = shop.onefold(*words, given="n\n")
    assert refused.returncode == 1
    assert refused.stderr.startswith("Delete 1 stopped event, never to be published? [y/N]: ")
    retry = shop.onefold("outbox", "retry", "-d", "shop.db", given="n\n")
    assert retry.stderr.startswith("Try all matching stopped events now? [y/N]: ")
    assert len(shop.rows(f"SELECT 1 FROM onefold_outbox WHERE id = '{event_id}'")) == 1
    assert shop.onefold(*words, given="y\n").stdout == "discarded: 1 of 1\n"
    assert shop.rows(f"SELECT 1 FROM onefold_outbox WHERE id = '{event_id}'") == []


def test_on_postgres_it_is_the_same(postgres_dsn: str) -> None:
    once = Onefold(postgres_dsn, source="shop")
    once.migrate()
    with once.transaction() as tx:
        event_id = tx.publish("order.placed", {"order": "a"})
    once.close()
    relay_until_one_stays_stopped(onefold, postgres_dsn, "-b", "local")
    found = told(onefold("outbox", "-d", postgres_dsn, "--json"))
    assert [row["id"] for row in found["stopped"]] == [str(event_id)]
    assert onefold("outbox", "discard", "-y", str(event_id), "-d", postgres_dsn).returncode == 0
    until(lambda: told(onefold("outbox", "-d", postgres_dsn, "--json"))["stopped"] == [])


def test_a_delayed_event_is_taken_back_and_what_has_left_is_not(stopped: tuple[Shop, str]) -> None:
    shop, event_id = stopped
    [(delayed,)] = shop.rows("SELECT id FROM onefold_outbox WHERE topic = 'order.reminded'")
    refused = shop.onefold("outbox", "cancel", event_id, "-d", "shop.db", "--yes")
    assert (refused.returncode, refused.stdout) == (
        1, "cancelled: 0 of 1; the others have left, are leaving or were never there\n",
    )  # fmt: skip
    asked = shop.onefold("outbox", "cancel", delayed, event_id, "-d", "shop.db", "--yes", "--json")
    assert told(asked) == {"cancelled": 1, "asked": 2}
    assert shop.rows("SELECT count(*) FROM onefold_outbox WHERE topic = 'order.reminded'") == [(0,)]
