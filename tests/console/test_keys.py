"""The pages of keys: what became of one, why a client gets 409, its stored answer, and erasing it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException

from onefold import AsyncOnefold, single_principal
from onefold._idempotency.model import Scope
from onefold.caches import MemoryCache
from onefold.console import console
from onefold.fastapi import Steps, Tx
from onefold.telemetry import hash_key
from tests.console.browsing import ACT, VIEW, Visitor, hidden_in, text_of
from tests.support.patience import PATIENCE_S

HOSTILE = "<script>alert(1)</script>"


class Shop:
    """An application with the console mounted into it."""

    def __init__(self, once: AsyncOnefold) -> None:
        self.once = once
        self.runs = 0
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()
        app = FastAPI()

        @app.post("/orders/{number}", status_code=201)
        @once.idempotent()
        async def order(number: str, tx: Tx[Any]) -> dict[str, str]:
            self.runs += 1
            return {"ordered": HOSTILE}

        @app.post("/slow")
        @once.idempotent(wait_s=0)
        async def slow(tx: Tx[Any]) -> str:
            self.entered.set()
            await self.go_on.wait()
            return "done"

        @app.post("/refused")
        @once.idempotent()
        async def refused(tx: Tx[Any]) -> None:
            raise HTTPException(409)

        @app.post("/steps")
        @once.idempotent(required=True, lease_s=600, work_lease_s=600)
        async def steps(steps: Steps) -> str:
            await steps.call("charge", self._charge)
            return "done"

        inner, innermost = FastAPI(), FastAPI()

        @innermost.post("/orders/{number}/refunds", status_code=201)
        @once.idempotent()
        async def refund(number: str, tx: Tx[Any]) -> None: ...

        inner.mount("/shop", innermost)
        app.mount("/v1", inner)
        once.install(app)
        app.mount("/console", console(once, view_token=VIEW, act_token=ACT))
        self.app = app
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://shop.test"
        )

    async def _charge(self) -> str:
        self.entered.set()
        await self.go_on.wait()
        return "paid"

    async def post(self, path: str, key: str) -> httpx.Response:
        return await self.client.post(path, headers={"Idempotency-Key": f'"{key}"'})

    async def operator(self, token: str = ACT) -> Visitor:
        visitor = Visitor(self.app, root="/console")
        await visitor.sign_in(token, name="Anna")
        return visitor


@pytest.fixture(params=["sqlite", "postgres"])
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Shop]:
    given: Path | str = request.getfixturevalue("sqlite_path" if request.param == "sqlite" else "postgres_dsn")
    # With a cache, which must not repeat what was erased.
    once = AsyncOnefold(given, principal=single_principal, cache=MemoryCache())
    await once.migrate()
    made = Shop(once)
    async with made.client:
        yield made
    await once.close()


@asynccontextmanager
async def in_flight(shop: Shop, path: str) -> AsyncIterator[None]:
    """A request with the key "k" that has entered its handler."""
    task = asyncio.create_task(shop.post(path, "k"))
    async with asyncio.timeout(PATIENCE_S):
        await shop.entered.wait()
    try:
        yield
    finally:
        shop.go_on.set()
        await task


async def find(visitor: Visitor, route: str, key: str = "k", principal: str = "single") -> httpx.Response:
    """The page that a search leads to."""
    sent = await visitor.submit("/keys", "/keys/find", principal=principal, route=route, key=key)
    assert sent.status_code == 303, text_of(sent)
    return await visitor.client.get(sent.headers["location"])


# What became of it


@pytest.mark.parametrize(
    "route",
    ["POST /v1/shop/orders/{number}/refunds", "POST /v1/shop/orders/{}/refunds", "POST /v1/shop/orders/7/refunds", ""],
)
async def test_a_key_below_mounts_is_found_by_the_whole_path(shop: Shop, route: str) -> None:
    assert (await shop.post("/v1/shop/orders/7/refunds", "k")).status_code == 201
    operator = await shop.operator()
    assert "Done: answered 201" in text_of(await find(operator, route))


async def test_a_path_without_its_mount_is_said_to_be_no_route(shop: Shop) -> None:
    await shop.post("/v1/shop/orders/7/refunds", "k")
    text = text_of(await find(await shop.operator(), "POST /orders/7/refunds"))
    assert "no route with keys that fits" in text
    assert "Below a mount, the route begins with the mount." in text


@pytest.mark.parametrize("route", ["POST /orders/{number}", "POST /orders/{}", "POST /orders/{anything}"])
async def test_a_key_is_found_by_what_the_operator_knows(shop: Shop, route: str) -> None:
    await shop.post("/orders/7", "k")
    page = await find(await shop.operator(VIEW), route, '"k"')
    assert "Done: answered 201" in text_of(page)
    assert "marked Idempotent-Replayed: true" in text_of(page)


async def test_a_key_is_found_without_its_route_where_the_application_is_known(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    visitor = await shop.operator(VIEW)
    assert "Done: answered 201" in text_of(await find(visitor, "", principal=""))
    nowhere = await visitor.submit("/keys", "/keys/find", principal="", route="", key="never")
    assert "No route of the application has something" in text_of(nowhere)
    await shop.post("/refused", "k")
    both = await visitor.submit("/keys", "/keys/find", principal="single", route="", key="k")
    assert "More than one route has something stored or running" in text_of(both)
    addresses = re.findall(r'<li><a href="([^"]+)"><code>POST /', both.text)
    pages = [text_of(await visitor.client.get(unescape(each))) for each in addresses]
    assert [re.findall(r"Done: answered (\d+)", page)[0] for page in pages] == ["201", "409"]


async def test_without_the_application_a_route_is_asked_for(actor: Visitor) -> None:
    sent = await actor.submit("/keys", "/keys/find", principal="acme", route="", key="k")
    assert (sent.status_code, "the application (--app), which knows its routes" in text_of(sent)) == (400, True)


async def test_neither_the_key_nor_its_principal_is_in_an_address(shop: Shop) -> None:
    visitor = await shop.operator(VIEW)
    sent = await visitor.submit("/keys", "/keys/find", principal="account-4711", route="POST /orders/{}", key="my-key")
    names, _, query = sent.headers["location"].partition("?")
    assert re.fullmatch(r"/console/keys/[0-9a-f]{32}(\.[0-9a-f]{32})*", names)
    assert query == f"route=known&hash={hash_key('my-key')}"


async def test_a_key_that_was_never_seen_is_told_with_what_may_be_the_reason(shop: Shop) -> None:
    page = await find(await shop.operator(VIEW), "POST /orders/{}", "never")
    assert "Nothing is stored" in text_of(page)
    assert "ended in 5xx" in text_of(page)


async def test_another_principals_key_is_another_key(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    page = await find(await shop.operator(VIEW), "POST /orders/{}", principal="another")
    assert "Nothing is stored" in text_of(page)


async def test_a_path_as_an_access_log_has_it_is_matched_to_its_route(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    assert "Done: answered 201" in text_of(await find(await shop.operator(VIEW), "POST /orders/7"))


async def test_that_a_retry_runs_is_not_promised_of_a_route_that_is_unknown(shop: Shop) -> None:
    said = text_of(await find(await shop.operator(VIEW), "POST /order/7"))
    assert "It runs" not in said
    assert "the route is unknown" in said


async def test_a_console_without_the_application_promises_no_retry(actor: Visitor) -> None:
    said = text_of(await find(actor, "POST /orders/7"))
    assert "A retry gets This cannot be predicted" in said


async def test_a_key_hash_of_a_log_is_told_from_a_key_that_is_not_stored(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    visitor = await shop.operator(VIEW)
    said = text_of(await visitor.get(f"/keys/{hash_key('k')}"))
    assert "It may be a key_hash" in said
    assert "It runs" not in said
    assert f"Key hash {hash_key('k')}" in text_of(await find(visitor, "POST /orders/{}"))


async def test_the_trace_that_a_request_ran_in_is_shown(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    line = f":traceparent:00-{'ab' * 16}-{'cd' * 8}-01".encode().hex()
    async with shop.once.transaction() as tx:
        value = f"'\\x00{line}'::bytea" if shop.once._database.dialect == "postgres" else f"x'00{line}'"
        await tx.connection.execute(f"UPDATE onefold_record SET headers = {value} WHERE status > 0")
    assert f"Trace {'ab' * 16}" in text_of(await find(await shop.operator(VIEW), "POST /orders/{}"))


async def test_when_a_request_was_stored_is_shown_as_far_as_it_is_known(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    visitor = await shop.operator(VIEW)
    assert re.search(r"Stored about \d+\.\d s ago \( ?20", text_of(await find(visitor, "POST /orders/{}")))
    assert "Stored, about" in text_of(await visitor.get("/keys"))


async def test_the_name_of_the_only_principal_is_offered_where_there_is_only_one(shop: Shop, actor: Visitor) -> None:
    assert 'placeholder="single"' in (await (await shop.operator(VIEW)).get("/keys")).text
    assert 'placeholder="single"' not in (await actor.get("/keys")).text


async def test_a_running_request_is_why_a_client_gets_409(shop: Shop) -> None:
    visitor = await shop.operator(VIEW)
    async with in_flight(shop, "/slow"):
        assert (await shop.post("/slow", "k")).status_code == 409
        said = text_of(await find(visitor, "POST /slow"))
        assert "A request with this key has been running" in said
        assert "Why 409 409 key-in-flight" in said
    assert "Done: answered 200" in text_of(await find(visitor, "POST /slow"))


async def test_how_a_running_request_ends_is_said_as_its_database_does_it(shop: Shop) -> None:
    visitor = await shop.operator(VIEW)
    async with in_flight(shop, "/slow"):
        said = text_of(await find(visitor, "POST /slow"))
    if shop.once._database.dialect == "postgres":
        assert "Running since 20" in said
        assert "or it takes longer than the route's lease_s" in said
    else:
        assert "lease_s, the database" not in said
        assert "SQLite has no lease" in said


async def test_a_request_in_steps_is_why_a_client_gets_409_for_as_long_as_its_lease(shop: Shop) -> None:
    visitor = await shop.operator(VIEW)
    async with in_flight(shop, "/steps"):
        assert (await shop.post("/steps", "k")).status_code == 409
        said = text_of(await find(visitor, "POST /steps"))
        assert "Running, in steps" in said
        assert "Its lease ends in 10 min" in said


async def test_stored_answers_are_listed_page_by_page(shop: Shop) -> None:
    for number in range(52):
        await shop.post("/orders/7", f"key-{number}")
    visitor = await shop.operator(VIEW)
    first = await visitor.get("/keys")
    [more] = re.findall(r'rel="next" href="([^"]+)"', first.text)
    second = await visitor.client.get(more.replace("&amp;", "&"))
    links = re.findall(r'href="/console/keys/([0-9a-f]{32})"', first.text + second.text)
    assert len(set(links)) == 52
    assert 'rel="next"' not in second.text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"route": "orders"}, "The route is a method and a path"),
        ({"route": "GET /orders"}, "The route is a method and a path"),
        ({"principal": " "}, "what the application calls the caller"),
        ({"key": "a,b"}, "This is not an Idempotency-Key"),
        ({"key": "kéy\u202e"}, "This is not an Idempotency-Key"),
    ],
)
async def test_a_search_that_cannot_find_anything_says_why_and_keeps_what_was_typed(
    actor: Visitor, fields: dict[str, str], said: str
) -> None:
    given = {"principal": "p-4711", "route": "POST /orders", "key": "k", **fields}
    page = await actor.submit("/keys", "/keys/find", **given)
    assert page.status_code == 400
    assert said in text_of(page)
    assert "p-4711" in page.text or fields.get("principal") == " "


@pytest.mark.parametrize("names", ["x", "00", "00" * 16 + ".", ".".join(["00" * 16] * 9), "00" * 17])
async def test_an_address_that_is_no_keys_is_not_found(actor: Visitor, names: str) -> None:
    assert (await actor.get(f"/keys/{names}")).status_code == 404


async def test_a_position_that_no_page_gave_is_told(actor: Visitor) -> None:
    page = await actor.get("/keys?after=1'--")
    assert page.status_code == 400
    assert "not a position in a list of keys" in text_of(page)


# The stored answer


async def test_the_stored_answer_is_hidden_until_it_is_asked_for_and_that_is_audited(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    visitor = await shop.operator()
    page = await find(visitor, "POST /orders/{}")
    assert "ordered" not in page.text
    [action] = re.findall(r'action="/console(/keys/[^"]+/answer)"', page.text)
    [key] = re.findall(r'name="key" value="([^"]+)"', page.text)
    answer = await visitor.submit("/keys", action, key=key)
    assert "ordered" in answer.text
    assert HOSTILE not in answer.text
    assert "application/json" in answer.text
    audit = text_of(await visitor.get("/audit"))
    assert "Anna keys show" in audit
    assert key in audit


async def test_only_a_name_of_this_key_is_shown(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    visitor = await shop.operator()
    other = "00" * 16
    digest = Scope("single", "POST /orders/{}").digest("k").hex()
    assert (await visitor.submit("/keys", f"/keys/{other}/answer", key=digest)).status_code == 404


async def test_a_sealed_answer_is_told_where_its_keys_are_not(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    async with shop.once.transaction() as tx:
        value = "'\\x02ffff'::bytea" if shop.once._database.dialect == "postgres" else "x'02ffff'"
        await tx.connection.execute(f"UPDATE onefold_record SET headers = {value}, body = {value} WHERE status > 0")
    visitor = await shop.operator()
    digest = Scope("single", "POST /orders/{}").digest("k").hex()
    answer = await visitor.submit("/keys", f"/keys/{digest}/answer", key=digest)
    assert "It cannot be opened here" in text_of(answer)


# Erasing


async def erasing(shop: Shop, visitor: Visitor) -> str:
    """The address of the page that asks whether to erase, of a key that is stored."""
    await shop.post("/orders/7", "k")
    page = await find(visitor, "POST /orders/{}")
    [address] = re.findall(r'href="/console(/keys/[^"]+/erase)"', page.text)
    return str(address)


async def test_a_key_is_erased_with_a_reason_after_a_page_that_shows_what_will_happen(shop: Shop) -> None:
    visitor = await shop.operator()
    address = await erasing(shop, visitor)
    asked = text_of(await visitor.get(address))
    assert "POST /orders/{}" in asked
    assert "happens a second time" in asked
    done = await visitor.submit(address, address, reason="customer 4711 asked for it")
    assert done.status_code == 303
    after = await visitor.client.get(done.headers["location"])
    assert "It is erased" in text_of(after)
    assert re.search(r"Erased 20\S+ \S+ UTC by Anna: customer 4711 asked for it", text_of(after))
    [line] = set(re.findall(r'href="/console(/audit\?after=\d+)#line-\d+"', after.text))
    assert re.search(r'href="/console/keys/[0-9a-f]{32}', (await visitor.get(line)).text)
    audit = text_of(await visitor.get("/audit"))
    assert "Anna keys erase customer 4711 asked for it" in audit
    await shop.post("/orders/7", "k")
    assert shop.runs == 2


async def test_before_a_4xx_is_erased_the_page_says_that_its_rows_were_undone(shop: Shop) -> None:
    await shop.post("/refused", "k")
    visitor = await shop.operator()
    page = await find(visitor, "POST /refused")
    [address] = re.findall(r'href="/console(/keys/[^"]+/erase)"', page.text)
    asked = text_of(await visitor.get(address))
    assert "was answered 409, and what its handler had written here was undone" in asked
    assert "What the first request has written stays" not in asked


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501, "bad\x00"])
async def test_without_a_reason_nothing_is_erased(shop: Shop, reason: str) -> None:
    visitor = await shop.operator()
    address = await erasing(shop, visitor)
    said = await visitor.submit(address, address, reason=reason)
    assert said.status_code == 400
    assert "Say why" in text_of(said)
    await shop.post("/orders/7", "k")
    assert shop.runs == 1


async def test_what_was_erased_by_another_operator_meanwhile_is_told(shop: Shop) -> None:
    visitor = await shop.operator()
    address = await erasing(shop, visitor)
    form = hidden_in(await visitor.get(address), visitor.root + address)
    assert (await visitor.post(address, {**form, "reason": "first"})).status_code == 303
    again = await visitor.post(address, {**form, "reason": "second"})
    assert again.status_code == 409
    assert "nothing was done" in text_of(again)


async def test_a_form_that_is_sent_twice_does_not_erase_what_the_retry_has_stored(shop: Shop) -> None:
    visitor = await shop.operator()
    address = await erasing(shop, visitor)
    form = {**hidden_in(await visitor.get(address), visitor.root + address), "reason": "clicked twice"}
    assert (await visitor.post(address, form)).status_code == 303
    await shop.post("/orders/7", "k")
    assert (await visitor.post(address, form)).status_code == 409
    await shop.post("/orders/7", "k")
    assert shop.runs == 2
    assert text_of(await visitor.get("/audit")).count("clicked twice") == 1


async def test_the_role_view_is_offered_no_erasure_and_no_answer(shop: Shop) -> None:
    await shop.post("/orders/7", "k")
    page = await find(await shop.operator(VIEW), "POST /orders/{}")
    assert "/erase" not in page.text
    assert "/answer" not in page.text
