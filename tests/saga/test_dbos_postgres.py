"""The conformance suite on DBOS, on PostgreSQL: what depends on the database; with the soak tests, all of it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from onefold.sagas.dbos import Dbos
from onefold.testing.servers import PrivatePostgres
from tests.saga.conformance import cases
from tests.saga.conformance.cases import CASES, Case
from tests.saga.conformance.sagas import SAGAS

_numbers = itertools.count(1)

DEPEND = [
    cases.many_starts_at_once_are_one_saga,
    cases.other_input_under_the_same_id_is_refused,
    cases.a_compensation_that_fails_is_shown_and_tried_until_it_succeeds,
    cases.a_signal_that_comes_early_is_kept,
    cases.a_cancelled_wait_is_compensated,
    cases.a_mistake_in_the_saga_stops_it_and_undoes_nothing,
    cases.the_history_has_every_step_and_error,
    cases.an_id_may_have_any_character_that_keys_may_have,
    cases.the_newest_sagas_are_listed,
]
HERE = [pytest.param(case, marks=() if case in DEPEND else [pytest.mark.soak], id=case.__name__) for case in CASES]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(postgres: PrivatePostgres) -> AsyncIterator[Dbos]:
    async with Dbos(postgres.fresh_database(), sagas=SAGAS) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", HERE)
async def test_the_engine_conforms(case: Case, engine: Dbos) -> None:
    await case(engine, f"dbos-postgres-{next(_numbers)}")
