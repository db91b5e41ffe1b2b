"""A part of a handler that runs out of time: it leaves nothing, and the rest is as it would be without it."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from tests.contract.backends import Backend
from tests.contract.plans import Desk, Plan
from tests.contract.rows import ASGI


async def time_out_in_a_part(desk: Desk) -> None:
    """On asyncio the block is cancelled; on a thread it finds out by itself, and raises."""
    tx = desk.tx
    assert tx is not None
    with contextlib.suppress(TimeoutError):
        if desk.backend not in ASGI:
            with tx.savepoint():
                await desk.execute("INSERT INTO orders (item) VALUES (:1)", "extra")
                raise TimeoutError
        async with asyncio.timeout(None) as limit, tx.savepoint():
            await desk.execute("INSERT INTO orders (item) VALUES (:1)", "extra")
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.sleep(60)


@pytest.mark.contract("C43")
@pytest.mark.parametrize("key", ['"k"', None])
def test_c43_a_part_that_times_out_is_not_kept_and_the_rest_is(backend: Backend, key: str | None) -> None:
    assert backend.post(key=key, plan=Plan(acts=time_out_in_a_part)).status == 201
    assert backend.rows() == ["book"]
    if key is not None:
        assert backend.post(key=key).replayed


@pytest.mark.contract("C43")
def test_c43_a_refusal_after_a_part_that_timed_out_keeps_nothing(backend: Backend) -> None:
    assert backend.post(key='"k"', plan=Plan(status=402, acts=time_out_in_a_part)).status == 402
    assert backend.rows() == []
    replay = backend.post(key='"k"')
    assert (replay.status, replay.replayed) == (402, True)


@pytest.mark.contract("C43", backends=ASGI)
def test_c43_a_part_that_cannot_be_undone_alone_fails_the_request(backend: Backend) -> None:
    async def leave_it_open(desk: Desk) -> None:
        assert desk.tx is not None
        await desk.tx.savepoint().__aenter__()
        await desk.execute("INSERT INTO orders (item) VALUES (:1)", "extra")

    answer = backend.post(key='"k"', plan=Plan(acts=leave_it_open))
    assert (answer.status, answer.problem) == (500, "handler-broken")
    assert "tx.savepoint()" in answer.json["detail"]
    assert (backend.rows(), backend.records()) == ([], [])
    assert backend.post(key='"k"').status == 201
