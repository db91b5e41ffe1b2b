"""The conformance suite on the engine of the tests: it shows that the suite asks for nothing that cannot be done."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator

import pytest

from tests.saga.conformance.cases import CASES, Case
from tests.saga.conformance.sagas import SAGAS
from tests.saga.memory_engine import MemoryEngine

_numbers = itertools.count(1)


@pytest.fixture
async def engine() -> AsyncIterator[MemoryEngine]:
    made = MemoryEngine(SAGAS)
    yield made
    await made.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_the_engine_conforms(case: Case, engine: MemoryEngine) -> None:
    await case(engine, f"memory-{next(_numbers)}")
