"""`onefold consumers pause|resume`: a consumer at work stops receiving, its health says so, and it goes on."""

from __future__ import annotations

from tests.cli.commands import Shop, one_line, told, until
from tests.cli.test_consume import health, relayed

D = ("-d", "shop.db")


def test_a_consumer_is_paused_says_so_and_is_resumed(shop: Shop) -> None:
    with shop.started("consume", "shop:once", "--only", "ship", "--health-port", "0") as consume:
        until(lambda: shop.rows("SELECT 1 FROM onefold_subscription"))
        paused = shop.onefold("consumers", "pause", "ship", "--actor", "ada", *D)
        assert paused.stdout.startswith("paused: ship;")
        consume.until_said("consumer 'ship' is paused by ada")
        until(lambda: list(health(consume)[1]) == ["ship: paused"])
        assert health(consume)[0] == 200
        shop.place("a")
        relayed(shop)
        assert "is paused already" in one_line(shop.onefold("consumers", "pause", "ship", *D))
        assert shop.shipped() == []
        [seen] = [each for each in told(shop.onefold("consumers", "list", *D, "--json")) if each["name"] == "ship"]
        assert (seen["paused_by"], seen["running"], seen["waiting"]) == ("ada", 1, 1)
        mistyped = shop.onefold("consumers", "pause", "shipp", *D)
        assert "no consumer 'shipp' has been seen in this database; did you mean 'ship'?" in one_line(mistyped)
        assert shop.rows("SELECT consumer FROM onefold_pause") == [("ship",)]
        assert told(shop.onefold("consumers", "resume", "ship", *D, "--json")) == {"resumed": "ship"}
        until(lambda: shop.shipped() == ["a"])
    assert "consumer 'ship' is not paused" in one_line(shop.onefold("consumers", "resume", "ship", *D))


def test_a_consumer_that_is_started_while_it_is_paused_waits(shop: Shop) -> None:
    shop.onefold("consumers", "pause", "ship", "--actor", "ada", "--yes", *D)
    with shop.started("consume", "shop:once", "--only", "ship") as consume:
        consume.until_said("consumer 'ship' is paused by ada")
        assert shop.rows("SELECT 1 FROM onefold_subscription") == []
    assert "consumer name 'a b'" in one_line(shop.onefold("consumers", "pause", "a b", *D))
