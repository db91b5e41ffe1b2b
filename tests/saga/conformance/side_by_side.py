"""Cases that wait for an engine, all at once: each has a saga of its own, and they take as long as the slowest."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from onefold.sagas import SagaEngine
from tests.saga.conformance.cases import Case


async def run_side_by_side(engine: SagaEngine, group: Sequence[Case], prefix: str) -> None:
    """Run them to their ends, and raise what failed, each with the name of its case."""
    ids = [f"{prefix}-{number}" for number in range(len(group))]
    running = (case(engine, saga_id) for case, saga_id in zip(group, ids, strict=True))
    failed: list[BaseException] = []
    for case, raised in zip(group, await asyncio.gather(*running, return_exceptions=True), strict=True):
        if isinstance(raised, BaseException):
            raised.add_note(f"in the case {case.__name__}")
            failed.append(raised)
    if failed:
        raise BaseExceptionGroup("cases that fail", failed)
