"""The conformance suite on Temporal. Its timers have a resolution of a second, so the cases wait side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from onefold.sagas.temporal import Temporal
from tests.saga.conformance.cases import CASES, Case
from tests.saga.conformance.sagas import SAGAS
from tests.saga.conformance.side_by_side import run_side_by_side
from tests.support.temporal_server import PrivateTemporal

GROUPS = [CASES[number::3] for number in range(3)]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(temporal: PrivateTemporal) -> AsyncIterator[Temporal]:
    async with Temporal(temporal.address, sagas=SAGAS) as made:
        yield made


@pytest.mark.parametrize("group", GROUPS, ids=["first", "second", "third"])
async def test_the_engine_conforms(group: list[Case], engine: Temporal, request: pytest.FixtureRequest) -> None:
    await run_side_by_side(engine, group, f"temporal-{request.node.callspec.id}")
