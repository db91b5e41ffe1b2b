"""Steps inside of a block that has a transaction of its own: refused, before anything runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold, single_principal
from onefold.errors import ProgrammerError, WorkMisused
from onefold.fastapi import Steps
from tests.steps.places import Place, effects, insert
from tests.steps.test_works import Calls


def test_a_step_inside_of_an_open_block_is_refused_and_nothing_of_it_is_run(once: Onefold, place: Place) -> None:
    """On Postgres it would commit apart from the block, on SQLite wait for what the block itself has locked."""
    calls = Calls()
    with once.work("import:42") as work:
        with once.transaction() as tx:
            insert(tx, "block")
            for ask in (
                lambda: work.phase("first", insert, "first"),
                lambda: work.call("fetch", calls, "file"),
                lambda: work.finish(insert, "last"),
            ):
                with pytest.raises(WorkMisused, match="'import:42' was called inside an open"):
                    ask()
        with once.handling("mail", "m1") as tx, pytest.raises(WorkMisused, match="End the block before the step"):
            work.phase("first", insert, "first")
        work.phase("first", insert, "first")
        work.finish(insert, "last")
    assert (effects(place), calls) == (["block", "first", "last"], [])


def test_a_work_inside_of_an_open_block_is_refused_and_begun_after_it(once: Onefold, place: Place) -> None:
    with once.transaction() as tx:
        insert(tx, "block")
        with pytest.raises(ProgrammerError, match=r"once\.work\('import:42'\) was called inside an open"):
            once.work("import:42").__enter__()
    with once.work("import:42") as work:
        work.phase("first", insert, "first")
    assert effects(place) == ["block", "first"]


def test_a_step_is_not_refused_inside_of_a_block_of_another_application(once: Onefold, tmp_path: Path) -> None:
    other = Onefold(tmp_path / "other.db", source="other")
    with once.work("import:42") as work, other.transaction() as tx:
        tx.connection.execute("CREATE TABLE written (name text)")
        assert work.call("fetch", Calls(), "file") == {"called": "file"}
    other.close()


async def test_an_awaited_step_inside_of_an_open_block_is_refused(address: str, place: Place) -> None:
    once = AsyncOnefold(address, principal=single_principal, source="tests")

    async def fetch() -> str:
        return "file"

    async with once.work("import:42") as work:
        async with once.transaction() as tx:
            await tx.connection.execute("INSERT INTO effects VALUES ('block')")
            with pytest.raises(WorkMisused, match="was called inside an open"):
                await work.call("fetch", fetch)
            task = asyncio.create_task(_ask_in(work, fetch))
            with pytest.raises(WorkMisused, match="was called inside an open"):
                await task
        assert await work.call("fetch", fetch) == "file"
    with pytest.raises(ProgrammerError, match="was called inside an open"):
        async with once.handling("mail", "m1"), once.work("import:43"):
            pass
    assert effects(place) == ["block"]
    await once.close()


async def _ask_in(work: Steps, fetch: Callable[[], Any]) -> Any:
    return await work.call("fetch", fetch)
