"""`onefold doctor`: a shop that is well, and one trouble for each finding, which it has to name."""

from __future__ import annotations

import json

import pytest

from tests.cli.commands import Shop, told

D = ("-d", "shop.db")

LEAST = {"what": "Tables", "level": "good", "said": "Up to date.", "way_out": ""}


def test_an_idle_shop_is_well(shop: Shop) -> None:
    people = shop.onefold("doctor", *D)
    assert (people.returncode, people.stdout.splitlines()[-1]) == (0, "all is well")
    found = told(shop.onefold("doctor", *D, "--json"))
    assert found["well"]
    assert LEAST in found["findings"]


@pytest.mark.parametrize(
    ("trouble", "what", "level", "way_out"),
    [
        ("missing migration", "Tables", "bad", "onefold migrate"),
        ("no relay", "Relays", "warn", "Start onefold relay"),
        ("an old event", "Relays", "bad", "Is onefold relay running"),
        ("refused event", "Refused events", "bad", "onefold outbox retry"),
        ("no consumer", "Consumer ship", "bad", "Start onefold consume"),
        ("paused consumer", "Consumer ship", "warn", "onefold consumers resume ship"),
    ],
)
def test_control_a_trouble_is_named_with_its_way_out(
    shop: Shop, trouble: str, what: str, level: str, way_out: str
) -> None:
    match trouble:
        case "missing migration":
            shop.change("DELETE FROM onefold_migration WHERE version = (SELECT max(version) FROM onefold_migration)")
        case "no relay":
            shop.place("a")
        case "an old event":
            shop.place("a")
            shop.change("UPDATE onefold_outbox SET written_at_ms = written_at_ms - 3600000")
        case "refused event":
            shop.place("a")
            shop.change("UPDATE onefold_outbox SET due_at_ms = 1 << 62, error = 'refused'")
        case "no consumer":
            shop.change(
                "INSERT INTO onefold_consumer (consumer, process, topics, started_at_ms, seen_at_ms)"
                " VALUES ('ship', 'p-1', '[]', 1, 1)"
            )
        case _:
            assert shop.onefold("consumers", "pause", "ship", *D, "--yes").returncode == 0
    answer = shop.onefold("doctor", *D, "--json")
    assert answer.returncode == 1
    [finding] = [each for each in json.loads(answer.stdout)["findings"] if each["what"] == what]
    assert finding["level"] == level
    assert finding["way_out"].startswith(way_out)
    assert "need a look: 1 of" in shop.onefold("doctor", *D).stdout


def test_a_database_that_is_not_there_is_no_finding(shop: Shop) -> None:
    answer = shop.onefold("doctor", "-d", "typo.db")
    assert answer.returncode == 2
    assert "there is no SQLite file" in answer.stderr
