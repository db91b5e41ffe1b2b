"""The conformance suite on Temporal."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from onefold.sagas.temporal import Temporal
from tests.saga.conformance.cases import CASES, Case
from tests.saga.conformance.sagas import SAGAS
from tests.support.temporal_server import PrivateTemporal

_numbers = itertools.count(1)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(temporal: PrivateTemporal, quick_temporal: None) -> AsyncIterator[Temporal]:
    async with Temporal(temporal.address, sagas=SAGAS) as made:
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_engine_conforms(case: Case, engine: Temporal) -> None:
    await case(engine, f"temporal-{next(_numbers)}")
