"""`onefold relay`: it publishes, says so, stops when told, and another takes over when it is killed."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import nats as nats_client
import pytest

from onefold import Onefold
from onefold.testing.servers import PrivateNats
from tests.cli.commands import Shop, one_line, onefold, told, until
from tests.support.patience import PATIENCE_S


def published(shop: Shop) -> list[str]:
    file = shop.folder / "published.txt"
    return file.read_text().split() if file.exists() else []


def test_until_empty_publishes_everything_in_order_and_ends(shop: Shop) -> None:
    shop.place("a", "b", "c", key="one")
    answer = shop.onefold("relay", "depot:once", "--until-empty")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert answer.stderr == "onefold: relaying from depot:once to Depot: 64 of 64 buckets\n"
    assert published(shop) == ["a", "b", "c"]
    assert shop.rows("SELECT count(*) FROM onefold_outbox") == [(0,)]


def test_what_it_does_can_be_read_as_lines_of_json(shop: Shop) -> None:
    shop.place("a", "b")
    answer = shop.onefold("relay", "depot:once", "--until-empty", "--json")
    events = [json.loads(line) for line in answer.stdout.splitlines()]
    assert {"BucketsHeld", "Relayed"} <= {event["event"] for event in events}
    assert sum(event["published"] for event in events if event["event"] == "Relayed") == 2


def test_published_events_are_kept_when_asked_for(shop: Shop) -> None:
    shop.place("a")
    assert shop.onefold("relay", "depot:once", "--until-empty", "--keep-published", "3600").returncode == 0
    assert shop.rows("SELECT count(*) FROM onefold_outbox WHERE published_at_ms IS NOT NULL") == [(1,)]


def test_a_relay_of_an_address_counts_for_the_console_when_asked_for(shop: Shop) -> None:
    shop.place("a")
    kept = "SELECT amount FROM onefold_activity WHERE span_s = 60 AND instrument LIKE 'onefold.outbox%'"
    shop.onefold("relay", "-d", "shop.db", "--until-empty")
    assert shop.rows(kept) == []
    shop.place("c")
    shop.onefold("relay", "-d", "shop.db", "--until-empty", "--activity")
    assert shop.rows(kept) != []


def test_until_empty_fails_where_events_are_stopped_and_others_wait_behind_them(shop: Shop) -> None:
    shop.put("refuse")
    shop.place("a", "b", key="one")
    answer = shop.onefold("relay", "depot:once", "--until-empty")
    assert answer.returncode == 1
    assert "stopped: 1; that wait: 1. See `onefold outbox`" in answer.stderr


def test_sigterm_lets_it_finish_what_is_in_flight_and_hand_over_its_buckets(shop: Shop) -> None:
    shop.put("gate")
    shop.place("a")
    with shop.started("relay", "depot:once") as relay:
        until(lambda: shop.has("publishing"))
        relay.tell(signal.SIGTERM)
        relay.until_said("SIGTERM: finishing what is in hand")
        assert published(shop) == []
        shop.put("go")
        assert relay.ended() == 0
    assert published(shop) == ["a"]
    assert shop.rows("SELECT count(*) FROM onefold_outbox") == [(0,)]
    assert shop.rows("SELECT count(*) FROM onefold_relay") == [(0,)]


def test_a_second_signal_ends_it_at_once_and_the_event_is_still_there(shop: Shop) -> None:
    shop.put("gate")
    shop.place("a")
    with shop.started("relay", "depot:once") as relay:
        until(lambda: shop.has("publishing"))
        relay.tell(signal.SIGINT)
        relay.until_said("SIGINT: finishing what is in hand; a second SIGINT stops at once")
        relay.tell(signal.SIGTERM)
        assert relay.ended() == -signal.SIGTERM
    assert shop.rows("SELECT count(*) FROM onefold_outbox") == [(1,)]


def test_it_says_when_it_pauses_and_when_it_goes_on(shop: Shop) -> None:
    shop.put("down")
    shop.place("a")
    with shop.started("relay", "depot:once") as relay:
        relay.until_said("paused (the broker): the depot is closed; it tries again\n")
        shop.remove("down")
        relay.until_said("resumed (the broker)\n")
        until(lambda: published(shop) == ["a"])
        relay.tell(signal.SIGINT)
        assert relay.ended() == 0
    assert "Traceback" not in relay.said


def test_another_relay_takes_over_from_one_that_was_killed(shop: Shop) -> None:
    shop.put("gate")
    shop.place("a", "b", key="one")
    with shop.started("relay", "depot:once", "--lease", "1") as relay:
        until(lambda: shop.has("publishing"))
        relay.tell(signal.SIGKILL)
        assert relay.ended() == -signal.SIGKILL
    assert len(told(shop.onefold("outbox", "-d", "shop.db", "--json"))["relays"]) == 1
    shop.put("go")
    answer = shop.onefold("relay", "depot:once", "--lease", "1", "--until-empty")
    assert answer.returncode == 0
    first, *_, last = answer.stderr.splitlines()
    assert first.endswith(
        ": 0 of 64 buckets; other relays have the others, one that has died until its lease ends (--lease, here 1 s)"
    )
    assert last.endswith(": 64 of 64 buckets")
    assert published(shop) == ["a", "b"]


def test_from_postgres_to_nats_by_their_addresses_and_no_password_is_shown(
    postgres_dsn: str, nats: PrivateNats
) -> None:
    once = Onefold(postgres_dsn, source="shop")
    once.migrate()
    with once.transaction() as tx:
        _ = tx.publish("cli.relayed", {"order": "a"})
    once.close()
    answer = onefold("relay", "--until-empty", ONEFOLD_DATABASE=postgres_dsn, ONEFOLD_BROKER=nats.url)
    assert answer.returncode == 0, answer.stderr
    assert f"to nats://127.0.0.1:{nats.port}: 64 of 64 buckets\n" in answer.stderr
    for address in (postgres_dsn, nats.url):
        password = urlsplit(address).password
        assert password
        assert password not in answer.stderr


async def test_what_was_relayed_to_nats_is_in_its_stream(postgres_dsn: str, nats: PrivateNats) -> None:
    once = Onefold(postgres_dsn, source="shop")
    once.migrate()
    with once.transaction() as tx:
        _ = tx.publish("cli.streamed", {"order": "a"})
    once.close()
    assert onefold("relay", "--until-empty", "-d", postgres_dsn, "-b", nats.url).returncode == 0
    client = await nats_client.connect(nats.url)
    message = await client.jetstream().get_last_msg("onefold", "onefold.cli.streamed")
    await client.close()
    assert message.data == b'{"order":"a"}'


def test_a_database_without_tables_is_told_at_once(postgres_dsn: str) -> None:
    assert "run `onefold migrate`" in one_line(onefold("relay", "-d", postgres_dsn, "-b", "local"))


@pytest.mark.parametrize("broker", ["carrier://someone:hunter2@pigeon", "https://someone:hunter2@example.test"])
def test_a_broker_that_is_not_known_is_told_in_one_line_without_its_password(shop: Shop, broker: str) -> None:
    line = one_line(shop.onefold("relay", "-d", "shop.db", "-b", broker))
    assert "is unknown" in line or "webhooks are signed" in line
    assert "hunter2" not in line


def test_a_missing_client_of_a_broker_is_named_with_what_to_install(shop: Shop) -> None:
    answer = shop.onefold("relay", "-d", "shop.db", "-b", "nats://127.0.0.1:1", without="nats")
    assert "pip install 'onefold[nats]'" in one_line(answer)


def test_a_missing_driver_is_named_with_what_to_install(tmp_path: Path) -> None:
    answer = onefold("outbox", "-d", "postgresql://127.0.0.1:1/x", without="asyncpg psycopg")
    assert "pip install 'onefold[asyncpg]'" in one_line(answer)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["relay"], "give a target, or --database"),
        (["relay", "depot:once", "--activity"], "brings its own activity"),
        (["relay", "-d", "typo.db"], "there is no SQLite file 'typo.db'"),
        (["relay", "-d", "postgresql://127.0.0.1:1/x"], "give --broker or set ONEFOLD_BROKER"),
        (["relay", "-d", "shop.db", "-b", "nats://ann:[secret@host"], "--broker is not an address"),
        (["relay", "depot:once", "-d", "shop.db"], "brings its own database"),
        (["relay", "-d", "shop.db", "--until-empty", "--health-port", "0"], "--health-port is for a relay that stays"),
        (["outbox", "cancel", "7", "-d", "shop.db"], "'7' is not the id of an event"),
        (["outbox", "retry", "-d", "shop.db"], "not answered (there is no terminal); give --yes"),
        (["outbox", "-d", "typo.db"], "there is no SQLite file 'typo.db'"),
        (["outbox", "retry", "x", "--yes", "-d", "typo.db"], "there is no SQLite file 'typo.db'"),
        (["dlq", "list", "-d", "typo.db"], "there is no SQLite file 'typo.db'"),
        (["dlq", "redrive", "-d", "typo.db"], "there is no SQLite file 'typo.db'"),
    ],
)
def test_a_command_that_cannot_be_meant_is_refused_and_makes_no_file(
    shop: Shop, words: list[str], message: str
) -> None:
    answer = shop.onefold(*words)
    assert answer.returncode == 2
    assert message in " ".join(answer.stderr.replace("│", " ").split())
    assert not shop.has("typo.db")


def test_a_relay_says_whether_it_lives_at_the_address_it_was_told(shop: Shop) -> None:
    health = ("--health-host", "127.0.0.2", "--health-port", "0")
    with shop.started("relay", "shop:once", *health) as relay:
        relay.until_said("/healthz")
        [address] = re.findall(r"health at (http://127\.0\.0\.2:\d+/healthz)", relay.said)
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as response:
            assert response.status == 200
            assert json.loads(response.read())["relay"] < 120
