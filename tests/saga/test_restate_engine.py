"""The conformance suite on Restate."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from onefold.sagas.restate import Restate
from onefold.testing.fault_proxy import HOST, reserve_port
from onefold.testing.servers import PrivateRestate
from tests.saga.conformance.cases import CASES, Case
from tests.saga.conformance.sagas import SAGAS

_numbers = itertools.count(1)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(restate: PrivateRestate) -> AsyncIterator[Restate]:
    with reserve_port() as port:
        listen = f"{HOST}:{port.getsockname()[1]}"
        async with Restate(ingress=restate.ingress, admin=restate.admin, listen=listen, sagas=SAGAS) as made:
            yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_engine_conforms(case: Case, engine: Restate) -> None:
    await case(engine, f"restate-{next(_numbers)}")
