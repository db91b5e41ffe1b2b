"""`onefold doctor`: a shop that is well, and one trouble for each finding, which it has to name."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest
import redis

from onefold import Onefold
from onefold._app.health_findings import HealthFinding
from onefold._app.setup_findings import (
    check_autovacuum,
    check_clock,
    check_connections,
    check_durability,
    check_pool,
    check_pooler,
)
from onefold._kernel.effects import Acquire, Fetch, Flow, Release
from onefold.testing.servers import PrivateValkey
from tests.cli.commands import Shop, onefold, told
from tests.support.scripts import play

D = ("-d", "shop.db")

LEAST = {"what": "Tables", "level": "good", "said": "Up to date.", "way_out": ""}


def test_an_idle_shop_is_well(shop: Shop) -> None:
    people = shop.onefold("doctor", *D)
    assert (people.returncode, people.stdout.splitlines()[-1]) == (0, "all is well")
    found = told(shop.onefold("doctor", *D, "--json"))
    assert found["well"]
    assert LEAST in found["findings"]


def test_an_event_that_is_refused_and_tried_again_is_no_calm(shop: Shop) -> None:
    shop.place("a")
    shop.change("UPDATE onefold_outbox SET due_at_ms = written_at_ms + 3600000, error = 'no consumer has subscribed'")
    answer = shop.onefold("doctor", *D, "--json")
    assert answer.returncode == 1
    found = {each["what"]: each for each in json.loads(answer.stdout)["findings"] if each["level"] == "warn"}
    assert found.keys() == {"Relays", "Refused events"}
    assert found["Relays"]["said"] == "None is at work, and events wait."
    said = "Some are tried again, such as one on order.placed: no consumer has subscribed"
    assert found["Refused events"]["said"] == said
    assert found["Refused events"]["way_out"].startswith("onefold outbox")


def test_an_event_for_later_is_no_trouble(shop: Shop) -> None:
    shop.place("a")
    shop.change("UPDATE onefold_outbox SET due_at_ms = written_at_ms + 3600000")
    assert shop.onefold("doctor", *D).returncode == 0


@pytest.mark.parametrize(
    ("trouble", "what", "level", "way_out"),
    [
        ("missing migration", "Tables", "bad", "onefold migrate"),
        ("no relay", "Relays", "warn", "Start onefold relay"),
        ("an old event", "Relays", "bad", "Is onefold relay running"),
        ("refused event", "Refused events", "bad", "onefold outbox retry"),
        ("no consumer", "Consumer ship", "bad", "Start onefold consume"),
        ("paused consumer", "Consumer ship", "warn", "onefold consumers resume ship"),
        ("dropped index", "Indexes", "bad", "Make them again"),
        ("old record", "Reaping", "warn", "Run onefold reap from cron"),
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
        case "dropped index":
            shop.change("DROP INDEX onefold_record_expires_at")
        case "old record":
            shop.change("INSERT INTO onefold_record VALUES (x'01', x'', 'POST /', 1, 200, x'', x'', 1)")
        case _:
            assert shop.onefold("consumers", "pause", "ship", *D, "--yes").returncode == 0
    answer = shop.onefold("doctor", *D, "--json")
    assert answer.returncode == 1
    [finding] = [each for each in json.loads(answer.stdout)["findings"] if each["what"] == what]
    assert finding["level"] == level
    assert finding["way_out"].startswith(way_out)
    assert "need a look: 1 of" in shop.onefold("doctor", *D).stdout


def test_without_a_target_and_a_database_both_are_named(shop: Shop) -> None:
    answer = shop.onefold("doctor")
    assert (answer.returncode, "give a target, as shop:once, or --database" in answer.stderr) == (2, True)


def test_a_database_that_is_not_there_is_no_finding(shop: Shop) -> None:
    answer = shop.onefold("doctor", "-d", "typo.db")
    assert answer.returncode == 2
    assert "there is no SQLite file" in answer.stderr


def test_a_postgres_is_asked_how_it_is_set_up_and_each_fault_is_named(postgres_dsn: str) -> None:
    """The private server has fsync off, which is the first fault; the others are planted."""
    once = Onefold(postgres_dsn)
    once.migrate()
    once.close()
    assert unwell(postgres_dsn) == {"Durability": "Set fsync = on."}
    with psycopg.connect(postgres_dsn, autocommit=True) as server:
        server.execute("DROP INDEX onefold_record_expires_at")
        server.execute("ALTER TABLE onefold_outbox SET (autovacuum_enabled = false)")
        server.execute("INSERT INTO onefold_record VALUES ('a', '', 'POST /', 1, 200, '', '', now() - interval '2 h')")
    found = unwell(postgres_dsn)
    assert set(found) == {"Durability", "Indexes", "Autovacuum", "Reaping"}
    assert found["Autovacuum"] == "ALTER TABLE onefold_outbox RESET (autovacuum_enabled);"
    with psycopg.connect(postgres_dsn, autocommit=True) as server:
        server.execute("CREATE INDEX onefold_record_expires_at ON onefold_record (expires_at)")
        server.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'onefold_record_expires_at'::regclass"
        )
    assert unwell(postgres_dsn)["Indexes"] == "REINDEX INDEX CONCURRENTLY onefold_record_expires_at;"


def unwell(database: str) -> dict[str, str]:
    answer = onefold("doctor", "-d", database, "--json")
    assert answer.returncode == 1, answer.stderr
    return {each["what"]: each["way_out"] for each in json.loads(answer.stdout)["findings"] if each["level"] != "good"}


def scripted(flow: Flow[HealthFinding], *answers: object) -> HealthFinding:
    """The finding of a server that gives these answers, each on a connection of its own."""
    turns: list[tuple[Any, Any]] = []
    for each in answers:
        turns += [(Acquire, None), (Fetch, [each] if isinstance(each, tuple) else each), (Release, None)]
    return play(flow, turns)


@pytest.mark.parametrize(
    ("flow", "answers", "level", "said"),
    [
        (check_durability(), [("on", "on", "off")], "bad", "synchronous_commit is off"),
        (check_durability(), [("on", "on", "on")], "good", "fsync is on"),
        (check_autovacuum(), [("off", "on", "on")], "bad", "It is off"),
        (check_autovacuum(), [("on", "on", "on"), [], [("onefold_record", 90_000)]], "warn", "does not keep up"),
        (check_clock(1000.0), [(1005.0,)], "warn", "5.0 s behind the database"),
        (check_clock(1000.0), [(999.0,)], "good", "differs"),
        (check_connections(), [(81, 100)], "warn", "81 of 100 are taken"),
        (check_pool(50), [(0, 100)], "warn", "1 such process fits"),
        (check_pool(20), [(0, 100)], "good", "4 such processes fit"),
        (check_connections(), [(79, 100)], "good", "79 of 100 are taken"),
    ],
)
def test_a_fault_of_the_server_is_named_by_its_answers(
    flow: Flow[HealthFinding], answers: list[object], level: str, said: str
) -> None:
    finding = scripted(flow, *answers)
    assert finding.level == level
    assert said in finding.said
    assert bool(finding.way_out) == (level != "good")


@pytest.mark.parametrize(("sessions", "level"), [((7, 7, 7, 7, 7), "good"), ((7, 7, 8, 7, 7), "warn")])
def test_a_pooler_is_known_by_the_sessions_behind_one_connection(sessions: tuple[int, ...], level: str) -> None:
    looks = [(Fetch, [(session,)]) for session in sessions]
    assert play(check_pooler(), [(Acquire, None), *looks, (Release, None)]).level == level


def test_the_routes_of_a_target_are_checked_too(shop: Shop) -> None:
    (shop.folder / "brief.py").write_text(
        "from starlette.applications import Starlette\n"
        "from starlette.responses import JSONResponse\n"
        "from starlette.routing import Route\n"
        "from onefold import AsyncOnefold, single_principal\n"
        "once = AsyncOnefold('shop.db', principal=single_principal)\n"
        "@once.idempotent(retention_s=60)\n"
        "async def pay(request): return JSONResponse({})\n"
        "app = Starlette(routes=[Route('/pay', pay, methods=['POST'])])\n"
        "once.install(app)\n"
    )
    answer = shop.onefold("doctor", "brief:once", "--json")
    [finding] = [each for each in json.loads(answer.stdout)["findings"] if each["level"] != "good"]
    assert (finding["what"], answer.returncode) == ("Retention", 1)
    assert "POST /pay (60 s)" in finding["said"]


APPLICATION = """\
import asyncpg
from starlette.applications import Starlette
from onefold import AsyncOnefold, single_principal
from onefold.console import Role, console


def make():
    once = AsyncOnefold({database}, principal=single_principal, broker={broker})
    app = Starlette()
    once.install(app)
    app.mount("/console", console(once, authorize=lambda request: {verdict}))
    return once
"""


def findings_of(shop: Shop, name: str, **given: str) -> dict[str, dict[str, str]]:
    chosen = {"database": "'shop.db'", "broker": "'local'", "verdict": "None", **given}
    (shop.folder / f"{name}.py").write_text(APPLICATION.format(**chosen))
    answer = shop.onefold("doctor", f"{name}:make", "--json")
    return {each["what"]: each for each in json.loads(answer.stdout)["findings"]}


def test_a_console_that_lets_strangers_in_is_named(shop: Shop) -> None:
    shut = findings_of(shop, "shut")
    assert shut["Console"]["said"] == "At /console: a request without credentials is refused."
    assert shut["Broker"]["said"] == "local answers; a confirm is a COMMIT of this database."
    opened = findings_of(shop, "opened", verdict="Role.ACT")["Console"]
    assert opened["level"] == "bad"
    assert "with role act" in opened["said"]
    assert "and can redrive and discard" in opened["said"]
    raising = findings_of(shop, "raising", verdict="request.user.is_staff")["Console"]
    assert (raising["level"], "authorize raised AssertionError" in raising["said"]) == ("good", True)


def test_a_broker_that_would_lose_messages_or_is_away_is_named(shop: Shop, valkey: PrivateValkey) -> None:
    """The private server evicts nothing and syncs; one that evicts is refused when it is opened."""
    assert findings_of(shop, "away", broker="'nats://127.0.0.1:1'")["Broker"]["level"] == "bad"
    address = repr(valkey.url)
    assert "a power cut may take the last second" in findings_of(shop, "kept", broker=address)["Broker"]["said"]
    with redis.Redis.from_url(valkey.url) as server:
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("maxmemory", "100mb")
        try:
            refused = findings_of(shop, "evicts", broker=address)["Broker"]
        finally:
            server.config_set("maxmemory", "0")
            server.config_set("maxmemory-policy", "noeviction")
    assert (refused["level"], "is refused" in refused["said"], "allkeys-lru" in refused["said"]) == ("bad", True, True)


def test_a_local_broker_whose_tables_are_missing_is_sent_to_migrate(shop: Shop, postgres_dsn: str) -> None:
    found = findings_of(shop, "unmade", database=repr(postgres_dsn), broker="'local'")
    assert found["Tables"]["said"] == "onefold's tables are not there."
    assert found["Broker"] == {
        "what": "Broker",
        "level": "bad",
        "said": "local is this database, whose tables are missing: nothing can be published or consumed.",
        "way_out": "onefold migrate.",
    }


def test_a_ledger_that_forgets_before_the_broker_does_is_named(shop: Shop) -> None:
    """NATS may deliver again for as long as its stream keeps: here it is the one that the target's broker says."""
    (shop.folder / "forgets.py").write_text(
        "from onefold import AsyncOnefold, Message\n"
        "from onefold.brokers.local import LocalBroker\n"
        "class Patient(LocalBroker):\n"
        "    redelivery_s = 30 * 86400.0\n"
        "once = AsyncOnefold('shop.db', broker=lambda: Patient(once._database))\n"
        "@once.consumer('ship', topic='order.placed')\n"
        "async def ship(message: Message) -> None: ...\n"
    )
    answer = shop.onefold("doctor", "forgets:once", "--json")
    [finding] = [each for each in json.loads(answer.stdout)["findings"] if each["what"] == "Broker"]
    assert (finding["level"], "retention_s" in finding["said"]) == ("bad", True), finding


def test_the_pool_of_a_process_is_held_against_the_server(shop: Shop, postgres_dsn: str) -> None:
    once = Onefold(postgres_dsn)
    once.migrate()
    once.close()
    pool = f"asyncpg.create_pool({postgres_dsn!r}, min_size=0, max_size={{size}})"
    small = findings_of(shop, "small", database=pool.format(size=5))["Pool"]
    assert (small["level"], "A process opens up to 5 connections" in small["said"]) == ("good", True)
    large = findings_of(shop, "large", database=pool.format(size=90))["Pool"]
    assert (large["level"], large["way_out"].startswith("Lower the size of the pool")) == ("warn", True)
