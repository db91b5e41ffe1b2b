"""The conformance suite on DBOS, on SQLite. One engine for all cases: DBOS is one per process."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from onefold.sagas.dbos import Dbos
from tests.saga.conformance.cases import CASES, Case
from tests.saga.conformance.sagas import SAGAS

_numbers = itertools.count(1)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Dbos]:
    async with Dbos(f"sqlite:///{tmp_path_factory.mktemp('dbos') / 'sagas.db'}", sagas=SAGAS) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_engine_conforms(case: Case, engine: Dbos) -> None:
    await case(engine, f"dbos-{next(_numbers)}")
