"""`onefold consume`: it finds the consumers, runs them, says whether they live, and stops when told."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest

from onefold import Onefold
from onefold._cli.health import HealthPage, _answer
from onefold.testing.servers import PrivateNats
from tests.cli.commands import Running, Shop, new_shop, one_line, onefold, started, told, until
from tests.support.patience import PATIENCE_S


def relayed(shop: Shop) -> None:
    """Everything that was published is with the consumers."""
    answer = shop.onefold("relay", "-d", "shop.db", "--until-empty")
    assert answer.returncode == 0, answer.stderr


def one_waits(shop: Shop) -> None:
    """An event is with the consumer, which does not run. A relay beside its handler would wait for the end of that: the
    handler has the write lock of the file."""
    with shop.started("consume", "shop:once", "--only", "ship") as consume:
        until(lambda: shop.rows("SELECT 1 FROM onefold_subscription"))
        consume.tell(signal.SIGTERM)
        assert consume.ended() == 0
    shop.place("a")
    relayed(shop)


def health(running: Running, path: str = "/healthz", method: str = "GET") -> tuple[int, dict[str, float]]:
    [address] = re.findall(r"health at (http://127\.0\.0\.1:\d+)/healthz", running.said)
    request = urllib.request.Request(f"{address}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_sigterm_lets_the_handler_finish_commit_and_acknowledge(shop: Shop) -> None:
    one_waits(shop)
    shop.put("gate")
    with shop.started("consume", "shop:once", "--only", "ship") as consume:
        until(lambda: shop.has("begun"))
        consume.tell(signal.SIGTERM)
        consume.until_said("SIGTERM: finishing what is in hand")
        assert shop.shipped() == []
        shop.put("go")
        assert consume.ended() == 0
    assert consume.said.startswith("onefold: consuming from Carrier: ship\n")
    assert shop.shipped() == ["a"]
    assert shop.rows("SELECT consumer FROM onefold_inbox") == [("ship",)]
    assert shop.rows("SELECT count(*) FROM onefold_delivery") == [(0,)]


def test_another_process_takes_over_from_one_that_was_killed_and_it_happens_once(shop: Shop) -> None:
    one_waits(shop)
    shop.put("gate")
    with shop.started("consume", "shop:once", "--only", "ship") as consume:
        until(lambda: shop.has("begun"))
        consume.tell(signal.SIGKILL)
        consume.ended()
    assert shop.shipped() == []
    shop.put("go")
    with shop.started("consume", "shop:once", "--only", "ship") as consume:
        until(shop.shipped)
        consume.tell(signal.SIGTERM)
        assert consume.ended() == 0
    assert shop.shipped() == ["a"]
    assert shop.rows("SELECT count(*) FROM onefold_letter") == [(0,)]


def test_a_relay_and_consumers_over_postgres_and_nats_handle_each_event_once(
    tmp_path: Path, postgres_dsn: str, nats: PrivateNats
) -> None:
    new_shop(tmp_path)
    onefold("migrate", "-d", postgres_dsn)
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE unloaded (order_id text)")
        once = Onefold(postgres_dsn, source="yard")
        with once.transaction() as tx:
            for order in "abc":
                _ = tx.publish("truck.arrived", {"order": order}, key="gate 1")
        once.close()
        yard = {"YARD_DATABASE": postgres_dsn, "YARD_BROKER": nats.url}
        with (
            started("relay", "yard:once", cwd=tmp_path, **yard) as relay,
            started("consume", "yard:once", cwd=tmp_path, **yard) as consume,
        ):
            until(lambda: connection.execute("SELECT count(*) FROM unloaded").fetchone() == (3,))
            for running in (relay, consume):
                running.tell(signal.SIGTERM)
                assert running.ended() == 0, running.said
        assert connection.execute("SELECT string_agg(order_id, '') FROM unloaded").fetchone() == ("abc",)


def test_a_missing_client_of_a_broker_is_told_in_one_line(tmp_path: Path) -> None:
    shop = new_shop(tmp_path)
    answer = shop.onefold(
        "consume", "yard:once", without="nats", YARD_DATABASE="shop.db", YARD_BROKER="nats://127.0.0.1:1"
    )
    assert "pip install 'onefold[nats]'" in one_line(answer)


def test_consumers_that_live_are_reported_well_by_name(shop: Shop) -> None:
    with shop.started("consume", "shop:once", "--health-port", "0") as consume:
        consume.until_said("/healthz")
        until(lambda: len(health(consume)[1]) == 2)
        status, turns = health(consume)
        assert (status, set(turns)) == (200, {"ship", "pack"})
        assert all(0 <= seconds < 60 for seconds in turns.values())
        assert health(consume, "/")[0] == 404
        assert health(consume, method="POST")[0] == 405


async def test_metrics_without_their_library_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onefold.prometheus", None)
    asked = asyncio.StreamReader()
    asked.feed_data(b"GET /metrics HTTP/1.1\r\n\r\n")
    answer = await _answer(asked, dict, HealthPage("127.0.0.1", 0, 60.0))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"pip install 'onefold[prometheus]'" in answer


def test_a_consumer_that_does_not_turn_is_reported_unwell(shop: Shop) -> None:
    shop.put("down")
    with shop.started("consume", "shop:once", "--only", "ship", "--health-port", "0", "--health-stale", "1") as consume:
        consume.until_said("/healthz")
        until(lambda: health(consume)[0] == 503)
        assert health(consume)[1]["ship"] > 1
        shop.remove("down")
        until(lambda: health(consume)[0] == 200)


def test_a_health_port_that_is_taken_is_told_in_one_line(shop: Shop) -> None:
    with shop.started("consume", "shop:once", "--health-port", "0") as consume:
        consume.until_said("/healthz")
        [port] = re.findall(r":(\d+)/healthz", consume.said)
        line = one_line(shop.onefold("consume", "shop:once", "--health-port", port))
    assert f"--health-port {port}: this process cannot listen" in line


def test_check_prints_the_consumers_and_runs_none(shop: Shop) -> None:
    answer = shop.onefold("consume", "shop:once", "--check")
    assert answer.returncode == 0
    lines = [line.split() for line in answer.stdout.splitlines() if line.strip()]
    assert lines == [
        ["consumer", "topics", "order", "handler"],
        ["ship", "order.placed", "none", "shop.ship"],
        ["pack", "order.packed", "strict", "shop.pack"],
    ]
    assert "pack" not in shop.onefold("consume", "shop:once", "--check", "--only", "ship").stdout
    assert shop.rows("SELECT count(*) FROM onefold_subscription") == [(0,)]


def test_what_it_finds_and_does_can_be_read_as_json(shop: Shop) -> None:
    found = told(shop.onefold("consume", "shop:once", "--check", "--json"))
    assert [(each["consumer"], each["topics"], each["order"]) for each in found] == [
        ("ship", ["order.placed"], "none"),
        ("pack", ["order.packed"], "strict"),
    ]
    with shop.started("consume", "shop:once", "--only", "ship", "--json") as consume:
        until(lambda: shop.rows("SELECT 1 FROM onefold_subscription"))
        shop.place("a")
        relayed(shop)
        consume.until_said('{"event": "Handled", "consumer": "ship", "topic": "order.placed",')


@pytest.mark.parametrize("target", ["once", "Nested.once", "fastapi_app", "flask_app", "sync_one", "async_one"])
def test_a_target_is_an_onefold_or_an_application_or_a_function_that_makes_one(shop: Shop, target: str) -> None:
    answer = shop.onefold("consume", f"targets:{target}", "--check")
    assert answer.returncode == 0, answer.stderr
    assert "listener" in answer.stdout


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("targets", "must be module:attribute"),
        ("targets:missing", "'targets' has no 'missing'; it has fastapi_app, flask_app, idle, once"),
        ("nowhere:once", "there is no module 'nowhere'"),
        ("shop.nowhere:once", "there is no module 'shop.nowhere'"),
        ("needs:once", "importing 'needs' failed: ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("failing:once", "importing 'failing' failed: JSONDecodeError"),
        ("targets:text", "'targets:text' is a str; give a Onefold"),
        ("targets:text", "returns one of them. 'targets' has fastapi_app, flask_app, idle, once"),
        ("targets:Nested", "'targets:Nested' is a class; give a Onefold"),
        ("targets:lazy", "looking for a Onefold in 'targets:lazy' failed: RuntimeError: not set up ("),
        ("targets:no_one", "'targets:no_one' is a NoneType; give a Onefold"),
        ("targets:needy", "is a function that needs address"),
        ("targets:broken", "calling 'targets:broken' failed: LookupError: no configuration ("),
        ("targets:bare_app", "is an application without onefold: call once.install(app)"),
        ("targets:idle", "'targets:idle' has no consumer to run: mark a handler with @once.consumer("),
    ],
)
def test_a_bad_target_is_told_in_one_line(shop: Shop, target: str, message: str) -> None:
    assert message in one_line(shop.onefold("consume", target))


def test_a_consumer_that_is_not_there_is_told_with_those_that_are(shop: Shop) -> None:
    assert "there is no consumer 'sip'; there are ['pack', 'ship']" in one_line(
        shop.onefold("consume", "shop:once", "--only", "sip")
    )


def test_a_database_without_tables_is_told_at_once(tmp_path: Path, postgres_dsn: str) -> None:
    new_shop(tmp_path)
    answer = onefold("consume", "yard:once", cwd=tmp_path, YARD_DATABASE=postgres_dsn, YARD_BROKER="local")
    assert "run `onefold migrate`" in one_line(answer)
