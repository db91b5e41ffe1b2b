"""Planted bugs that the campaigns of lost connections must find: each by the rule that is meant for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold._idempotency.locked_store import LockedStore
from onefold.testing.servers import PrivatePostgres
from tests.crash import mutants
from tests.crash.asgi_harness import AsgiAsyncpg, AsgiSqlite
from tests.crash.harness import guard_for
from tests.crash.paths import PATHS, campaign, travel
from tests.crash.wsgi_harness import WsgiPsycopg, WsgiSqlite
from tests.support.crash import cancel_task, lose_connection


@pytest.fixture(params=[AsgiSqlite, WsgiSqlite, AsgiAsyncpg, WsgiPsycopg])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    if request.param in (AsgiSqlite, WsgiSqlite):
        yield request.param, tmp_path / "shop.db"
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        yield request.param, server.fresh_database()


def test_a_row_that_commits_apart_from_its_key_is_found(where: tuple[Any, Any]) -> None:
    harness, address = where
    with closing(harness(address, splits=True)) as split:
        wrong = campaign(split, PATHS["first success"], lose_connection)
    assert any("has 2 rows" in sentence for sentence in wrong)


def test_a_refusal_that_leaves_its_row_behind_is_found(where: tuple[Any, Any]) -> None:
    harness, address = where
    with closing(harness(address, splits=True)) as split:
        assert any("and has a row" in sentence for sentence in travel(split, PATHS["stored refusal"]).wrong)


def test_a_split_write_is_found_by_cancelling_too(tmp_path: Path) -> None:
    with closing(AsgiSqlite(tmp_path / "shop.db", splits=True, edges=("before", "during", "after"))) as split:
        wrong = campaign(split, PATHS["first success"], cancel_task)
    assert any("has 2 rows" in sentence for sentence in wrong)


def test_a_replay_that_differs_by_one_byte_is_found(where: tuple[Any, Any]) -> None:
    harness, address = where
    if harness in (AsgiSqlite, WsgiSqlite):
        guard = guard_for("sqlite", LockedStore(mutants.SHORTENED_SQLITE))
    else:
        guard = guard_for("postgres", LockedStore(mutants.SHORTENED_POSTGRES))
    with closing(harness(address, guard=guard)) as forgetful:
        wrong = travel(forgetful, PATHS["replay"]).wrong
    assert any("and then" in sentence for sentence in wrong)


def test_a_late_holder_that_overwrites_its_successor_is_found(tmp_path: Path) -> None:
    guard = guard_for("sqlite", LockedStore(mutants.OVERWRITING))
    with closing(WsgiSqlite(tmp_path / "shop.db", guard=guard)) as unfenced:
        wrong = travel(unfenced, PATHS["taken over"]).wrong
    assert any("has 2 rows" in sentence for sentence in wrong)


def test_a_connection_that_is_never_given_back_is_found(tmp_path: Path) -> None:
    with closing(WsgiSqlite(tmp_path / "shop.db")) as harness:
        forgotten = harness.boundaries.around(harness.database).acquire()
        assert any("1 connections are out" in sentence for sentence in travel(harness, PATHS["first success"]).wrong)
        forgotten.release()
        assert not travel(harness, PATHS["first success"]).wrong
