"""Rows of the contract in which the driver matters most, with drivers that are used by their public API."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onefold._kernel.public_drivers import PUBLIC_ONLY
from tests.contract import test_faults, test_in_flight, test_misuse, test_replay
from tests.contract.backends import Backend
from tests.contract.commit_proxy import CommitProxy
from tests.contract.rows import POSTGRES


@pytest.fixture(autouse=True)
def _public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PUBLIC_ONLY, "1")


@pytest.mark.contract("C14", "C18", "C35", backends=POSTGRES)
@pytest.mark.parametrize(
    "row",
    [
        test_replay.test_c14_a_replay_survives_a_restart_of_the_application,
        test_in_flight.test_c18_twenty_duplicates_that_race_freely_run_once,
        test_in_flight.test_c18_where_the_route_waits_every_duplicate_gets_the_answer,
        test_misuse.test_c35_a_swallowed_sql_error_behind_a_refusal_is_harmless,
        test_misuse.test_c35_a_handler_may_nest_transactions_of_its_own,
    ],
)
def test_the_contract_is_kept_by_public_api(backend: Backend, row: Callable[[Backend], None]) -> None:
    row(backend)


@pytest.mark.contract("C34", backends=POSTGRES)
@pytest.mark.parametrize(
    "row",
    [
        test_faults.test_c34_a_commit_whose_answer_is_lost_is_found,
        test_faults.test_c34_a_commit_that_cannot_be_asked_about_is_said_to_be_unknown,
        test_faults.test_c34_without_a_key_a_lost_commit_is_said_to_be_unknowable,
    ],
    ids=lambda row: row.__name__,
)
def test_the_contract_is_kept_by_public_api_where_a_commit_is_lost(
    backend: Backend, proxy: CommitProxy, row: Callable[[Backend, CommitProxy], None]
) -> None:
    row(backend, proxy)
