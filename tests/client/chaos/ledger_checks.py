"""What is true in the end: the bank's rows and the journal's, read from their databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from onefold._app import Onefold
from onefold._client.journal.schema import prepare
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Row, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.db._drivers import sync_database
from tests.client.chaos.bank import TABLE


def make_bank(database: str) -> str:
    """The tables of a bank."""
    once = Onefold(database)
    once.migrate()
    once.close()
    _asked(database, lambda dialect: with_connection(lambda: _changed(TABLE[dialect])))
    return database


def make_journal(database: str) -> str:
    """The table of a journal."""
    _asked(database, prepare)
    return database


def paid(database: str) -> Counter[str]:
    """How often each intent was paid."""
    return Counter(intent for (intent,) in _rows(database, "SELECT intent FROM payments"))


def journalled(database: str) -> list[Row]:
    """Intent, key, status and tries of all that is in the journal."""
    return _rows(database, "SELECT intent, key, status, tries FROM onefold_intent")


def wrong_payments(bank: str, intents: Iterable[str]) -> list[str]:
    """Intents that were not paid exactly once."""
    times = paid(bank)
    wrong = [f"{intent} was paid {times[intent]} times" for intent in intents if times[intent] != 1]
    return wrong + [f"nobody meant to pay {intent}" for intent in times.keys() - set(intents)]


def wrong_entries(journal: str, keys: dict[str, str]) -> list[str]:
    """Intents whose entry is not resolved, or not under the key that they were answered under."""
    entries = {intent: (key, status) for intent, key, status, _ in journalled(journal)}
    wrong = [
        f"{intent} was answered under {key}, and the journal says {entries.get(intent)}"
        for intent, key in keys.items()
        if entries.get(intent) != (key, 201)
    ]
    shared = [key for key, times in Counter(key for key, _ in entries.values()).items() if times > 1]
    return wrong + [f"key {key} serves several intents" for key in shared]


def _rows(database: str, sql: str) -> list[Row]:
    found: list[Row] = _asked(database, lambda _: with_connection(lambda: _fetched(sql)))
    return found


def _asked(database: str, flow: Any) -> Any:
    with closing(sync_database(database)) as opened:
        return run(flow(opened.dialect), ThreadExecutor(opened))


async def _fetched(sql: str) -> list[Row]:
    return await Fetch(Statement(sql))


async def _changed(sql: str) -> int:
    return await Batch((Boundary.BEGIN, Statement(sql), Boundary.COMMIT))
