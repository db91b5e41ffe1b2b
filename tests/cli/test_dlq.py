"""`onefold dlq`: a dead letter is found, looked at, tried again, or done without; and nobody acts unnamed."""

from __future__ import annotations

import getpass
import json
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onefold import Onefold
from onefold._kernel.messages import Message
from onefold.testing.servers import PrivatePostgres
from tests.cli.commands import Shop, new_shop, one_line, onefold, told, until

D = ("-d", "shop.db")


def refuse(message: Message) -> None:
    raise RuntimeError("no [red]boxes\x1b[2J left" if message.topic == "order.packed" else "the printer is on fire")


def bury(database: str | Path, *events: tuple[str, str | None, object], broker: str = "local") -> list[str]:
    """Have every event fail; the ids of those that are dead, or wait behind one that is, as they were published."""
    once = Onefold(database, source="shop", broker=broker)
    once.consumer("ship", topic="order.placed", attempts=1)(refuse)
    once.consumer("pack", topic="order.packed", order="strict", attempts=1)(refuse)
    with once.consuming():
        until(lambda: _count(once, "SELECT count(*) FROM onefold_subscription") == 2)
        with once.transaction() as tx:
            ids = [str(tx.publish(topic, data, key=key)) for topic, key, data in events]
        with once.relaying():
            until(lambda: _count(once, "SELECT count(*) FROM onefold_letter") == len(events))
    once.close()
    return ids


def _count(once: Onefold, query: str) -> int:
    with once.transaction() as tx:
        count: int = tx.connection.execute(query).fetchone()[0]
        return count


def placed(*orders: str) -> list[tuple[str, str | None, object]]:
    return [("order.placed", None, {"order": order}) for order in orders]


@pytest.fixture
def buried(shop: Shop) -> Callable[..., list[str]]:
    return lambda *events: bury(shop.database, *events)


def states(shop: Shop) -> dict[str, str]:
    return dict(shop.rows("SELECT message_id, state FROM onefold_letter"))


def test_a_dead_letter_is_listed_shown_redriven_and_handled(shop: Shop) -> None:
    shop.put("broken")
    with shop.started("relay", *D), shop.started("consume", "shop:once") as consume:
        until(lambda: len(shop.rows("SELECT 1 FROM onefold_subscription")) == 2)
        [event_id] = shop.place("a")
        until(lambda: states(shop) == {event_id: "dead"})
        [listed] = told(shop.onefold("dlq", "list", *D, "--json"))
        assert (listed["id"], listed["consumer"], listed["topic"]) == (event_id, "ship", "order.placed")
        assert listed["reason"] == "RuntimeError: the printer is on fire"
        shown = told(shop.onefold("dlq", "show", event_id, *D, "--json"))
        assert shown["data"] == {"order": "a"}
        assert shown["headers"]["ce-id"] == event_id
        assert 'raise RuntimeError("the printer is on fire")' in shown["history"][0]["traceback"]
        shop.remove("broken")
        answer = shop.onefold("dlq", "redrive", *D, "--wait", "--json", "--actor", "ann")
        job = told(answer)
        assert (job["failed_messages"], job["gone"], job["waiting"], job["dead"]) == (1, 1, 0, 0)
        assert "stop waiting with Ctrl-C" in answer.stderr
        consume.tell(signal.SIGTERM)
        assert consume.ended() == 0
    assert shop.shipped() == ["a"]
    assert shop.rows("SELECT actor, action FROM onefold_audit") == [("ann", "redrive")]


def test_failed_messages_that_die_again_make_a_waiting_redrive_fail(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    buried(*placed("a"))
    shop.put("broken")
    with shop.started("consume", "shop:once"):
        answer = shop.onefold("dlq", "redrive", *D, "--wait")
    assert answer.returncode == 1
    assert answer.stdout.endswith("1 failed message of ship; 0 waiting, 1 dead again\n")
    assert answer.stderr.count("\n") == 1  # a bar is for a terminal


def test_the_filters_choose_what_is_listed(shop: Shop, buried: Callable[..., list[str]]) -> None:
    first, second, third = buried(*placed("a", "b"), ("order.packed", "one", {}))
    long_ago = datetime.now(UTC) - timedelta(days=2)
    shop.change(
        f"UPDATE onefold_letter SET died_at_ms = {int(long_ago.timestamp() * 1000)} WHERE message_id = '{first}'"
    )

    def listed(*words: str) -> set[str]:
        return {failed_message["id"] for failed_message in told(shop.onefold("dlq", "list", *D, "--json", *words))}

    assert listed() == {first, second, third}
    assert listed("--consumer", "pack") == listed("--topic", "order.packed") == listed("--reason", "boxes") == {third}
    assert listed("--since", "1d") == {second, third}
    assert listed("--until", (long_ago + timedelta(seconds=1)).isoformat()) == {first}
    assert listed("--state", "waiting") == set()
    assert len(listed("--limit", "2")) == 2


def test_dead_letters_are_discarded_by_the_filters_they_are_listed_by(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    first, second, third = buried(*placed("a", "b"), ("order.packed", "one", {}))
    long_ago = datetime.now(UTC) - timedelta(days=2)
    shop.change(
        f"UPDATE onefold_letter SET died_at_ms = {int(long_ago.timestamp() * 1000)} WHERE message_id = '{first}'"
    )
    words = ("dlq", "discard", *D, "-c", "ship", "--since", "1d", "--json")
    refused = shop.onefold(*words, given="n\n")
    assert refused.returncode == 1
    assert refused.stderr.startswith("Delete 1 dead letter of ship for good? [y/N]: ")
    assert told(shop.onefold(*words, "-y")) == {"consumer": "ship", "discarded": 1, "asked": None}
    assert shop.onefold(*words, "-y").returncode == 1
    mistaken = shop.onefold("dlq", "discard", *D, "-c", "ship", "--reason", "no longer wanted", "-y")
    assert mistaken.returncode == 1
    assert mistaken.stdout.startswith("discarded: 0: no dead letter of ship matches; --reason looks into errors")
    all_of_one = shop.onefold("dlq", "discard", *D, "-c", "ship", "-y")
    assert all_of_one.returncode == 2
    assert "at least one of --topic, --reason, --since and --until" in " ".join(
        all_of_one.stderr.replace("│", " ").split()
    )
    assert shop.onefold("dlq", "discard", *D, "-c", "ship", "-y", first, "--topic", "order.placed").returncode == 2
    assert shop.onefold("dlq", "discard", *D, "-c", "pack", "--reason", "boxes", "-y").stdout == "discarded: 1\n"
    assert shop.rows("SELECT message_id FROM onefold_letter") == [(first,)]
    assert second in shop.rows("SELECT details FROM onefold_audit WHERE consumer = 'ship'")[0][0]
    assert third != second


def test_a_time_without_a_zone_is_refused(shop: Shop) -> None:
    answer = shop.onefold("dlq", "list", *D, "--since", "2026-07-01")
    assert answer.returncode == 2
    assert "is not a time with a zone" in " ".join(answer.stderr.split())


def test_people_see_every_failed_message_and_no_control_characters(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    [event_id] = buried(("order.packed", "one", {"order": "\x1b[2J"}))
    listed = shop.onefold("dlq", "list", *D).stdout
    shown = shop.onefold("dlq", "show", event_id, *D).stdout
    for text in (listed, shown):
        assert event_id in text
        assert r"no [red]boxes\x1b[2J left" in text
        assert "\x1b" not in text
    assert "ce-type: order.packed" in shown
    assert "Traceback (most recent call last)" in shown
    assert "started:   1 attempt since it came or was last redriven" in shown
    assert "failed:    1 of these attempts" in shown
    assert listed.endswith("letters: 1\n")


def test_frames_of_onefold_are_folded_in_what_is_printed_and_not_in_json(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    [event_id] = buried(*placed("a"))
    [failure] = told(shop.onefold("dlq", "show", event_id, *D, "--json"))["history"]
    frames = [line for line in failure["traceback"].splitlines() if line.startswith('  File "')]
    own = sum("/onefold/_" in line for line in frames)
    assert own > 2
    shown = shop.onefold("dlq", "show", event_id, *D).stdout
    assert "/onefold/_" not in shown
    assert f"  ... {own} frames of onefold" in shown
    assert 'raise RuntimeError("no [red]boxes' in shown
    assert shown.endswith("RuntimeError: the printer is on fire\n\n")


def test_data_that_is_no_json_is_shown_as_what_it_is(shop: Shop, buried: Callable[..., list[str]]) -> None:
    text, raw = buried(*placed("a", "b"))
    with closing(sqlite3.connect(shop.database)) as connection:
        for event_id, data in ((text, b"plain text"), (raw, b"\xff\xfe")):
            connection.execute("UPDATE onefold_letter SET data = ? WHERE message_id = ?", (data, event_id))
        connection.commit()
    assert told(shop.onefold("dlq", "show", text, *D, "--json"))["data_text"] == "plain text"
    assert told(shop.onefold("dlq", "show", raw, *D, "--json"))["data_base64"] == "//4="


def test_a_dry_run_counts_by_topic_and_reason_and_changes_nothing(shop: Shop, buried: Callable[..., list[str]]) -> None:
    ids = buried(*placed("a", "b"))
    found = told(shop.onefold("dlq", "redrive", *D, "--dry-run", "--json"))
    assert found["failed_messages"] == 2
    assert found["groups"] == [
        {"topic": "order.placed", "reason": "RuntimeError: the printer is on fire", "failed_messages": 2, "unfit": 0}
    ]
    assert sorted(found["first"]) == sorted(ids)
    rehearsed = shop.onefold("dlq", "redrive", *D, "--dry-run").stdout
    assert "would redrive 2 dead letters of ship" in rehearsed
    assert "too old" in rehearsed
    assert "unfit" not in rehearsed
    assert "would redrive 1 dead letter of ship" in shop.onefold("dlq", "redrive", ids[0], *D, "--dry-run").stdout
    assert set(states(shop).values()) == {"dead"}
    assert told(shop.onefold("dlq", "jobs", *D, "--json")) == []


def test_a_redrive_is_listed_can_be_cancelled_and_names_who_did_both(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    buried(*placed("a", "b"))
    job = told(shop.onefold("dlq", "redrive", *D, "--rate", "0.01", "--json"))
    assert (job["failed_messages"], job["waiting"]) == (2, 2)
    [listed] = told(shop.onefold("dlq", "jobs", *D, "--json"))
    assert listed["id"] == job["id"]
    assert listed["actor"] == getpass.getuser()
    cancelled = told(shop.onefold("dlq", "cancel", job["id"], *D, "--json", "--actor", "bob", "--why", "too early"))
    assert cancelled["cancelled"] is True
    assert set(states(shop).values()) == {"dead"}
    [(actor, action, details)] = shop.rows("SELECT actor, action, details FROM onefold_audit ORDER BY id DESC LIMIT 1")
    assert (actor, action, json.loads(details)["why"]) == ("bob", "cancel", "too early")
    assert job["id"] in shop.onefold("dlq", "jobs", *D).stdout


def test_a_redrive_does_not_call_handled_what_a_later_one_took_or_what_was_discarded(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    buried(*placed("a", "b"))
    shop.put("broken")
    with shop.started("consume", "shop:once"):
        for _ in range(2):
            assert shop.onefold("dlq", "redrive", *D, "--wait").returncode == 1
    jobs = told(shop.onefold("dlq", "jobs", *D, "--json"))
    assert [(job["gone"], job["dead"], "handled" in job) for job in jobs] == [(0, 2, False), (2, 0, False)]
    shop.onefold("dlq", "discard", *D, "--topic", "order.placed", "--yes")
    listed = shop.onefold("dlq", "jobs", *D).stdout
    assert listed.splitlines()[0].split()[4:] == ["messages", "gone", "waiting", "dead", "cancelled"]
    assert listed.endswith("gone: handled, discarded, or taken by a later redrive\n")


def test_only_the_ids_that_are_named_are_redriven(shop: Shop, buried: Callable[..., list[str]]) -> None:
    first, second = buried(*placed("a", "b"))
    assert told(shop.onefold("dlq", "redrive", second, *D, "--json"))["failed_messages"] == 1
    assert states(shop) == {first: "dead", second: "waiting"}
    nothing = shop.onefold("dlq", "redrive", *D, "--reason", "nobody said that")
    assert (nothing.returncode, nothing.stdout) == (1, "no dead letter of ship fits\n")


@pytest.mark.parametrize("words", [("list",), ("list", "--json"), ("redrive",), ("redrive", "--dry-run")])
def test_a_consumer_that_was_never_seen_is_told_from_one_without_dead_letters(
    shop: Shop, buried: Callable[..., list[str]], words: tuple[str, ...]
) -> None:
    buried(*placed("a"))
    mistyped = shop.onefold("dlq", *words, *D, "--consumer", "shipp")
    assert "no consumer 'shipp' has been seen in this database; did you mean 'ship'?" in mistyped.stderr
    unlike = shop.onefold("dlq", *words, *D, "--consumer", "billing")
    assert "no consumer 'billing' has been seen in this database; see `onefold consumers list`." in unlike.stderr
    assert (mistyped.returncode, unlike.returncode) == (1, 1)
    assert "dead letters: 0" not in mistyped.stdout
    known = shop.onefold("dlq", *words, *D, "--consumer", "pack")
    assert ("seen" in known.stderr, known.returncode) == (False, int(words == ("redrive",)))


def test_dead_letters_that_are_too_old_are_told_with_the_option_that_takes_them(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    [old] = buried(*placed("a"))
    shop.change("UPDATE onefold_letter SET died_at_ms = died_at_ms - 20 * 86400000")
    answer = shop.onefold("dlq", "redrive", *D)
    assert answer.returncode == 1
    assert answer.stdout == "no dead letter of ship fits; 1 died more than 7 days ago: see --days\n"
    assert told(shop.onefold("dlq", "redrive", *D, "--days", "30", "--json"))["failed_messages"] == 1
    assert states(shop) == {old: "waiting"}


def test_discard_asks_then_deletes_dead_letters_and_no_waiting_ones(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    first, second = buried(*placed("a", "b"))
    shop.onefold("dlq", "redrive", second, *D)
    assert shop.onefold("dlq", "discard", first, *D, given="n\n").returncode == 1
    assert first in states(shop)
    answer = shop.onefold("dlq", "discard", first, second, *D, given="y\n")
    assert answer.stdout == "discarded: 1 of 2; the others are not dead, or not there\n"
    assert states(shop) == {second: "waiting"}
    forced = told(shop.onefold("dlq", "discard", second, *D, "--yes", "--force", "--json"))
    assert forced == {"consumer": "ship", "discarded": 1, "asked": 1}
    assert states(shop) == {}


@pytest.mark.parametrize("verb", ["skip", "resume", "discard", "show"])
def test_that_a_message_is_not_there_is_told_before_a_person_is_asked(
    shop: Shop, buried: Callable[..., list[str]], verb: str
) -> None:
    buried(*placed("a"))
    line = one_line(shop.onefold("dlq", verb, "m-42", *D, "--consumer", "ship", given="y\n"))
    assert line == "onefold: there is no failed message 'm-42' of consumer 'ship'"


def test_discard_asks_for_those_that_it_will_delete_and_not_where_there_are_none(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    first, second = buried(*placed("a", "b"))
    shop.onefold("dlq", "redrive", second, *D)
    asked = shop.onefold("dlq", "discard", first, second, "m-42", *D, given="n\n")
    assert asked.stderr.startswith("Delete 1 failed message of ship for good? [y/N]: ")
    waits = shop.onefold("dlq", "discard", second, *D)
    assert (waits.returncode, waits.stderr) == (1, "")
    assert waits.stdout == "discarded: 0 of 1; the others are not dead, or not there\n"
    nothing = shop.onefold("dlq", "discard", *D, "--topic", "order.paid")
    assert (nothing.returncode, nothing.stderr) == (1, "")
    assert nothing.stdout.startswith("discarded: 0: no dead letter of ship matches")


def test_skip_lets_a_key_go_on_without_its_dead_head(shop: Shop, buried: Callable[..., list[str]]) -> None:
    head, behind = buried(("order.packed", "one", 1), ("order.packed", "one", 2))
    assert states(shop) == {head: "dead", behind: "waiting"}
    assert "is not a dead letter at the head" in one_line(shop.onefold("dlq", "skip", behind, *D, "--yes"))
    skipped = told(shop.onefold("dlq", "skip", head, *D, "--yes", "--json", "--actor", "ann"))
    assert skipped == {"consumer": "pack", "skipped": head}
    with shop.started("consume", "shop:once"):
        until(lambda: states(shop) == {head: "dead"})
    assert told(shop.onefold("dlq", "list", *D, "--json"))[0]["reason"] == "skipped by ann"


def test_resume_goes_on_with_a_failed_message_whose_predecessor_is_gone(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    head, behind = buried(("order.packed", "one", 1), ("order.packed", "one", 2))
    shop.onefold("dlq", "discard", head, *D, "--yes")
    assert told(shop.onefold("dlq", "resume", behind, *D, "--yes", "--json")) == {"consumer": "pack", "resumed": behind}
    with shop.started("consume", "shop:once"):
        until(lambda: states(shop) == {})


def test_where_several_consumers_have_failed_messages_one_must_be_named(
    shop: Shop, buried: Callable[..., list[str]]
) -> None:
    buried(*placed("a"), ("order.packed", "one", {}))
    line = one_line(shop.onefold("dlq", "redrive", *D))
    assert "several consumers have failed messages (pack, ship): name one with --consumer" in line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show", "nothing"), "there is no failed message 'nothing'"),
        (("redrive",), "there are no failed messages"),
        (("cancel", "nothing"), "there is no redrive job 'nothing'"),
        (("skip", "nothing", "--consumer", "ship", "--yes"), "there is no failed message 'nothing'"),
        (("redrive", "--consumer", "ship", "--rate", "0"), "per_second"),
        (("discard", "x", "--consumer", "ship", "--yes", "--actor", " "), "must say who does this"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(shop: Shop, words: tuple[str, ...], message: str) -> None:
    assert message in one_line(shop.onefold("dlq", *words, *D))


def test_on_postgres_a_failed_message_is_found_by_its_id_and_redriven(
    postgres: PrivatePostgres, tmp_path: Path
) -> None:
    dsn = postgres.fresh_database()
    new_shop(tmp_path)
    onefold("migrate", "-d", dsn)
    ids = bury(dsn, *placed("a", "b", "c"))
    shown: dict[str, Any] = told(onefold("dlq", "show", ids[1], "-d", dsn, "--json"))
    assert (shown["id"], shown["data"]) == (ids[1], {"order": "b"})
    answer = onefold("dlq", "redrive", ids[1], "-d", dsn, "--json")
    assert json.loads(answer.stdout)["failed_messages"] == 1
    assert {failed_message["id"] for failed_message in told(onefold("dlq", "list", "-d", dsn, "--json"))} == {
        ids[0],
        ids[2],
    }
