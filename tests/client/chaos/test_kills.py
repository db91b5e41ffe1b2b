"""kill -9 of a customer at every point of a call: the next process finishes it under the same key, and it happens once.

A planted mistake must be seen: a customer that forgets the intent, and with it the key, when it starts again.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import onefold, told
from tests.client.chaos.bank import open_bank
from tests.client.chaos.customers import child
from tests.client.chaos.ledger_checks import journalled, make_bank, make_journal, paid
from tests.client.chaos.victim import POINTS, paid_by
from tests.support.patience import PATIENCE_S

#: Where the bank has paid by then.
PAID_BY_THEN = {"committed", "half-read", "answered", "resolved"}


@pytest.fixture(params=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return make_journal(str(tmp_path / "journal.db"))
    dsn: str = request.getfixturevalue("postgres_dsn")
    return make_journal(dsn)


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A bank for all of them: its database and its address."""
    database = make_bank(str(tmp_path_factory.mktemp("bank") / "bank.db"))
    with open_bank(database) as opened:
        yield database, opened.url


@pytest.fixture
def intent(request: pytest.FixtureRequest) -> str:
    """One of the test's own."""
    return f"pay:{request.node.name}"


def unresolved(journal: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told(onefold("intents", "--json", "-d", journal))["intents"]
    return found


def killed_at(point: str, kind: str, url: str, journal: str, intent: str) -> None:
    with child(paid_by, kind, url, journal, intent, point) as victim:
        assert victim.ended(PATIENCE_S) == -signal.SIGKILL


def is_finished_by_the_next(point: str, kind: str, bank: tuple[str, str], journal: str, intent: str) -> None:
    database, url = bank
    killed_at(point, kind, url, journal, intent)
    [(_, key, status, _)] = journalled(journal)
    listed = [(each["intent"], each["key"]) for each in unresolved(journal)]
    assert listed == ([] if point == "resolved" else [(intent, key)])
    assert status == (201 if point == "resolved" else None)
    assert paid(database)[intent] == (point in PAID_BY_THEN)

    with child(paid_by, kind, url, journal, intent, None) as next_one:
        answered, body, its_key, replayed = next_one.told(PATIENCE_S)
    assert (answered, its_key, replayed) == (201, key, point in PAID_BY_THEN)
    assert intent in body
    assert paid(database)[intent] == 1
    assert journalled(journal) == [(intent, key, 201, 2)]


@pytest.mark.parametrize("point", POINTS)
def test_what_a_killed_customer_left_is_finished_once(
    point: str, bank: tuple[str, str], journal: str, intent: str
) -> None:
    is_finished_by_the_next(point, "threads", bank, journal, intent)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("journal", ["sqlite"], indirect=True)
def test_so_is_what_was_killed_on_a_loop(point: str, bank: tuple[str, str], journal: str, intent: str) -> None:
    is_finished_by_the_next(point, "asyncio", bank, journal, intent)


@pytest.mark.parametrize("journal", ["sqlite"], indirect=True)
def test_control_a_customer_that_forgets_what_it_meant_is_seen_to_pay_twice(
    bank: tuple[str, str], journal: str, intent: str
) -> None:
    database, url = bank
    killed_at("committed", "threads", url, journal, intent)
    assert told(onefold("intents", "-d", journal, "forget", intent, "--yes", "--json"))["forgotten"] == 1
    with child(paid_by, "threads", url, journal, intent, None) as next_one:
        assert next_one.told(PATIENCE_S)[3] is False
    assert paid(database)[intent] == 2
