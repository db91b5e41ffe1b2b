"""`onefold consumers`: they are listed with what waits for them, and one that is not running is removed."""

from __future__ import annotations

import signal

import pytest

from onefold import Onefold
from onefold.testing.servers import PrivateNats
from tests.cli.commands import Shop, one_line, onefold, told, until

D = ("-d", "shop.db")


@pytest.fixture
def renamed(shop: Shop) -> Shop:
    """A shop whose consumer `dispatch` is now called `ship`; three orders wait for each."""
    shop.change("INSERT INTO onefold_subscription (consumer, topic) VALUES ('dispatch', 'order.placed')")
    shop.change("INSERT INTO onefold_subscription (consumer, topic) VALUES ('ship', 'order.placed')")
    shop.place("a", "b", "c")
    assert shop.onefold("relay", *D, "--until-empty").returncode == 0
    return shop


def test_they_are_listed_and_one_is_removed(renamed: Shop) -> None:
    found = {each["name"]: each for each in told(renamed.onefold("consumers", "list", *D, "--json"))}
    assert (found["dispatch"]["waiting"], found["dispatch"]["topics"]) == (3, ["order.placed"])
    assert (found["dispatch"]["running"], found["dispatch"]["seen_s"]) == (0, None)
    people = renamed.onefold("consumers", "list", *D).stdout
    for target in (("shop:once",), ("--target", "shop:once")):
        assert renamed.onefold("consumers", "list", *target).stdout == people
    [line] = [line for line in people.splitlines() if "dispatch" in line]
    assert line.split() == ["dispatch", "order.placed", "3", "0", "-", "-"]
    assert renamed.onefold("consumers", "remove", "dispatch", *D, given="n\n").returncode == 1
    assert renamed.rows("SELECT count(*) FROM onefold_delivery WHERE consumer = 'dispatch'") == [(3,)]
    answer = renamed.onefold("consumers", "remove", "dispatch", *D, "--yes", "--actor", "anna")
    assert answer.stdout == (
        "removed: dispatch; dropped: 3 waiting messages, 0 failed messages, 0 rows of its ledger\n"
    )
    assert renamed.rows("SELECT consumer, count(*) FROM onefold_delivery GROUP BY 1") == [("ship", 3)]
    assert renamed.rows("SELECT actor, action, consumer FROM onefold_audit") == [("anna", "remove", "dispatch")]
    missing = one_line(renamed.onefold("consumers", "remove", "dispatch", *D, "-y"))
    assert "there is no consumer 'dispatch'" in missing


def test_without_a_broker_they_are_listed_as_the_database_knows_them(postgres_dsn: str) -> None:
    once = Onefold(postgres_dsn, source="shop")
    once.migrate()
    once.pause_consumer("ledger", actor="ada")
    once.close()
    answer = onefold("consumers", "list", "--json", ONEFOLD_DATABASE=postgres_dsn)
    [seen] = told(answer)
    assert (seen["name"], seen["paused_by"], seen["waiting"], seen["running"]) == ("ledger", "ada", None, 0)
    assert "the broker was not asked what waits there: give --broker or set ONEFOLD_BROKER" in answer.stderr
    assert "give --broker" in onefold("consumers", "remove", "ledger", "-y", "-d", postgres_dsn).stderr


def test_one_that_runs_is_listed_so_and_not_removed(renamed: Shop) -> None:
    with renamed.started("consume", "shop:once", "--only", "ship") as consume:
        consume.until_said("consuming from")
        until(lambda: len(renamed.shipped()) == 3)
        until(lambda: renamed.rows("SELECT count(*) FROM onefold_delivery WHERE consumer = 'ship'") == [(0,)])
        found = {each["name"]: each for each in told(renamed.onefold("consumers", "list", *D, "--json"))}
        assert (found["ship"]["running"], found["ship"]["waiting"]) == (1, 0)
        refused = one_line(renamed.onefold("consumers", "remove", "ship", "-t", "shop:once", "-y"))
        assert "consumer 'ship' cannot be removed while 1 process(es) of it are running" in refused
        consume.tell(signal.SIGTERM)
        assert consume.ended() == 0
    answer = told(renamed.onefold("consumers", "remove", "ship", "-t", "shop:once", "-y", "--json"))
    assert answer == {"waiting": 0, "handled": 3, "failed_messages": 0}


def test_there_may_be_none(shop: Shop) -> None:
    assert shop.onefold("consumers", "list", *D).stdout == "there are no consumers\n"


def test_a_broker_elsewhere_is_named_by_its_address(shop: Shop, nats: PrivateNats) -> None:
    answer = shop.onefold("consumers", "remove", "nothing-here", *D, "-b", nats.url, "-y")
    assert "there is no consumer 'nothing-here'" in one_line(answer)
    assert "give a target, or --database" in onefold("consumers", "list").stderr
