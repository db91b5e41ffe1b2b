"""Keys as people look for them: listed page by page, found by any of their names, held by a request, and erased."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, single_principal
from onefold._app.base_app import run_flow
from onefold._idempotency.model import Scope
from onefold._idempotency.stored_keys import erase, find_holder, find_keys, list_keys, read_digest, show_answer
from onefold._kernel.audit import list_audit
from onefold._kernel.effects import Flow
from onefold.errors import ConfigurationError
from onefold.fastapi import Tx

T = TypeVar("T")


class Shop:
    """An application with two routes, one of which has a parameter and so a signpost beside each record."""

    def __init__(self, once: AsyncOnefold) -> None:
        self.once = once
        self.runs: list[str] = []
        self.seen: list[object] = []
        app = FastAPI()

        @app.post("/orders", status_code=201)
        @once.idempotent()
        async def order(tx: Tx[Any]) -> dict[str, str]:
            self.runs.append("order")
            digest = Scope("single", "POST /orders").digest("held")
            self.seen.append(await self.ask(functools.partial(find_holder, digests=(digest,))))
            return {"ordered": "<script>"}

        @app.post("/orders/{number}/refund")
        @once.idempotent()
        async def refund(number: str, tx: Tx[Any]) -> dict[str, str]:
            self.runs.append("refund")
            return {"refunded": number}

        once.install(app)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.test")

    async def ask(self, question: Callable[[str], Flow[T]]) -> T:
        return await run_flow(self.once, question)

    async def post(self, path: str, key: str) -> httpx.Response:
        return await self.client.post(path, headers={"Idempotency-Key": f'"{key}"'})


@asynccontextmanager
async def shop_over(database: object) -> AsyncIterator[Shop]:
    once = AsyncOnefold(database, principal=single_principal, earlier_records=True)
    await once.migrate()
    shop = Shop(once)
    async with shop.client:
        yield shop
    await once.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    name = "sqlite_path" if request.param == "sqlite" else "postgres_dsn"
    given: Path | str = request.getfixturevalue(name)
    async with shop_over(given) as made:
        yield made


def names_of_refund(key: str) -> tuple[bytes, ...]:
    return tuple(Scope("single", f"POST /orders/{part}/refund").digest(key) for part in ("{}", "{number}"))


async def test_every_key_is_on_one_page_of_the_list(shop: Shop) -> None:
    for number in range(5):
        await shop.post("/orders", f"key-{number}")
    first = await shop.ask(functools.partial(list_keys, limit=3))
    rest = await shop.ask(functools.partial(list_keys, after=first.after, limit=3))
    expected = {Scope("single", "POST /orders").digest(f"key-{number}").hex() for number in range(5)}
    assert [len(first.keys), len(rest.keys), rest.after] == [3, 2, None]
    assert {key.id for key in (*first.keys, *rest.keys)} == expected
    assert {(key.state, key.operation, key.status, key.is_sealed) for key in rest.keys} == {
        ("done", "POST /orders", 201, False)
    }


@pytest.mark.parametrize("after", ["", "1", "x-00", f"9{'9' * 30}-{'00' * 16}", f"1-{'00' * 15}", f"٣-{'00' * 16}"])
async def test_a_position_that_no_page_gave_is_refused(shop: Shop, after: str) -> None:
    with pytest.raises(ConfigurationError, match="not a position in a list of keys"):
        await shop.ask(functools.partial(list_keys, after=after))


async def test_a_running_request_is_seen_as_the_holder_of_its_key(shop: Shop) -> None:
    await shop.post("/orders", "other")
    await shop.post("/orders", "held")
    assert shop.seen[0] is None, "the control: another key is not held"
    assert shop.seen[1] is not None
    digest = Scope("single", "POST /orders").digest("held")
    assert await shop.ask(functools.partial(find_holder, digests=(digest,))) is None


async def test_an_erased_key_runs_again_and_the_audit_says_why(shop: Shop) -> None:
    assert (await shop.post("/orders/7/refund", "k")).json() == {"refunded": "7"}
    names = names_of_refund("k")
    assert [key.state for key in await shop.ask(functools.partial(find_keys, digests=names))] == ["done", "elsewhere"]
    gone = await shop.ask(functools.partial(erase, digests=names, actor="ada", why="asked by the customer"))
    assert {key.id for key in gone} == {name.hex() for name in names}
    assert await shop.ask(functools.partial(find_keys, digests=names)) == ()
    [line] = await shop.ask(list_audit)
    assert (line.actor, line.action, line.details["why"]) == ("ada", "keys erase", "asked by the customer")
    assert line.details["keys"] == [name.hex() for name in names]
    assert (await shop.post("/orders/7/refund", "k")).status_code == 200
    assert shop.runs == ["refund", "refund"]


async def test_a_signpost_goes_with_its_record_although_its_name_was_not_given(shop: Shop) -> None:
    await shop.post("/orders/7/refund", "k")
    await shop.ask(functools.partial(erase, digests=names_of_refund("k")[:1], actor="ada", why="found in the list"))
    assert (await shop.post("/orders/7/refund", "k")).status_code == 200


async def test_a_signpost_that_may_be_another_records_stays(shop: Shop) -> None:
    """And the control of the one above: a name that is left behind holds retries off."""
    await shop.post("/orders/7/refund", "k")
    await shop.post("/orders", "other")
    column = "expires_at" if shop.once._database.dialect == "postgres" else "expires_at_ms"
    async with shop.once.transaction() as tx:
        await tx.connection.execute(f"UPDATE onefold_record SET {column} = (SELECT max({column}) FROM onefold_record)")
    await shop.ask(functools.partial(erase, digests=names_of_refund("k")[:1], actor="ada", why="found in the list"))
    assert (await shop.post("/orders/7/refund", "k")).status_code == 409


async def test_where_nothing_is_stored_nothing_is_erased_or_written(shop: Shop) -> None:
    assert await shop.ask(functools.partial(erase, digests=(bytes(16),), actor="ada", why="typo")) == ()
    assert await shop.ask(functools.partial(show_answer, digest=bytes(16), actor="ada")) is None
    assert await shop.ask(list_audit) == []


async def test_an_erasure_without_a_reason_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match="needs a reason"):
        await shop.ask(functools.partial(erase, digests=(bytes(16),), actor="ada", why=" "))


async def test_a_look_at_an_answer_is_written_down(shop: Shop) -> None:
    await shop.post("/orders", "k")
    digest = Scope("single", "POST /orders").digest("k")
    record = await shop.ask(functools.partial(show_answer, digest=digest, actor="ada"))
    assert record is not None
    assert b"<script>" in (record.body or b"")
    [line] = await shop.ask(list_audit)
    assert (line.actor, line.action, line.details) == (
        "ada",
        "keys show",
        {"key": digest.hex(), "operation": "POST /orders", "status": 201},
    )


async def test_the_audit_is_read_page_by_page(shop: Shop) -> None:
    await shop.post("/orders", "k")
    digest = Scope("single", "POST /orders").digest("k")
    for actor in ("ada", "grace", "joan"):
        await shop.ask(functools.partial(show_answer, digest=digest, actor=actor))
    first = await shop.ask(functools.partial(list_audit, limit=2))
    rest = await shop.ask(functools.partial(list_audit, after=first[-1].id, limit=2))
    assert [line.actor for line in (*first, *rest)] == ["joan", "grace", "ada"]


@pytest.mark.parametrize("text", ["", "00", "zz" * 16, "AA" * 16, " " + "aa" * 16, "aa " * 16])
def test_an_id_that_is_none_is_told(text: str) -> None:
    assert read_digest(text) is None
    assert read_digest("aa" * 16) == b"\xaa" * 16
