"""Conditional requests through every framework, over every kind of driver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._http.condition_errors import ConditionFailed
from onefold.errors import ConfigurationError
from onefold.fastapi import Condition, Steps, Tx
from onefold.policies import Conditional
from tests.conditional.stages import FRAMEWORKS, WAYS, Service, is_problem, service
from tests.http.stages import calling
from tests.natural.stages import address_for


def named(way: tuple[str, str, str]) -> str:
    return "-".join(way).replace(" ", "-")


@pytest.fixture
async def shop(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    framework, driver, form = request.param
    async with service(framework, driver, form, address_for(request, driver)) as found:
        yield found


every_way = pytest.mark.parametrize("shop", WAYS, ids=named, indirect=True)
every_framework = pytest.mark.parametrize("shop", FRAMEWORKS, ids=named, indirect=True)


@every_framework
async def test_a_write_happens_to_the_state_that_it_names_only(shop: Service) -> None:
    created = await shop.ask("PUT", "o1", "a", if_none_match="*")
    assert (created.status_code, created.headers["etag"]) == (200, '"1"'), created.text
    replaced = await shop.ask("PUT", "o1", "b", if_match='"7", "1"')
    assert (replaced.status_code, replaced.headers["etag"]) == (200, '"2"'), replaced.text
    late = await shop.ask("PUT", "o1", "c", if_match='"1"')
    with is_problem(late, 412, "condition-failed") as problem:
        assert (late.headers["etag"], problem["retryable"]) == ('"2"', False)
    with is_problem(await shop.ask("PUT", "o1", "c", if_match='W/"2"'), 412, "condition-failed"):
        pass
    with is_problem(await shop.ask("PUT", "o1", "c", if_none_match="*"), 412, "condition-failed"):
        pass
    missing = await shop.ask("PUT", "o2", "c", if_match="*")
    with is_problem(missing, 412, "condition-failed"):
        assert "etag" not in missing.headers
    with is_problem(await shop.ask("PUT", "o1", "c"), 428, "condition-missing"):
        pass
    with is_problem(await shop.ask("PUT", "o1", "c", if_match="2"), 400, "condition-malformed"):
        pass
    assert shop.stage.outside("SELECT id, note, version FROM orders") == [("o1", "b", 2)]


@every_framework
async def test_the_key_decides_first(shop: Service) -> None:
    await shop.ask("PUT", "o1", "a", if_none_match="*")
    first = await shop.ask("PUT", "o1", "b", if_match='"1"', idempotency_key="k1")
    # Whatever its condition is, or is not: a replay is a replay.
    for headers in ({"if_match": '"1"'}, {"if_match": '"9"'}, {"if_match": "?"}, {}):
        again = await shop.ask("PUT", "o1", "b", idempotency_key="k1", **headers)
        assert (again.status_code, again.headers["etag"], again.text) == (200, '"2"', first.text)
        assert again.headers["idempotent-replayed"] == "true"
    # A refusal is the answer to its key; a new condition is a new request, under a new one.
    with is_problem(await shop.ask("PUT", "o1", "c", if_match='"1"', idempotency_key="k2"), 412, "condition-failed"):
        pass
    again = await shop.ask("PUT", "o1", "c", if_match='"2"', idempotency_key="k2")
    with is_problem(again, 412, "condition-failed"):
        assert (again.headers["etag"], again.headers["idempotent-replayed"]) == ('"2"', "true")
    anew = await shop.ask("PUT", "o1", "c", if_match='"2"', idempotency_key="k3")
    assert (anew.status_code, anew.headers["etag"]) == (200, '"3"')
    # What was not judged is not the answer to a key.
    with is_problem(await shop.ask("PUT", "o1", "d", idempotency_key="k4"), 428, "condition-missing"):
        pass
    assert (await shop.ask("PUT", "o1", "d", if_match='"3"', idempotency_key="k4")).status_code == 200


@every_framework
async def test_a_delete_may_be_repeated_where_its_route_says_so(shop: Service) -> None:
    await shop.ask("PUT", "o1", "a", if_none_match="*")
    with is_problem(await shop.ask("DELETE", "o1", if_match='"7"'), 412, "condition-failed"):
        pass
    assert [(await shop.ask("DELETE", "o1", if_match='"1"')).status_code for _ in range(2)] == [204, 204]


@every_way
async def test_of_several_at_once_one_is_done(shop: Service) -> None:
    made = await asyncio.gather(*(shop.ask("PUT", "o1", f"a{n}", if_none_match="*") for n in range(3)))
    assert sorted(answer.status_code for answer in made) == [200, 412, 412]
    moved = await asyncio.gather(*(shop.ask("PUT", "o1", f"b{n}", if_match='"1"') for n in range(3)))
    assert sorted(answer.status_code for answer in moved) == [200, 412, 412]
    assert {answer.headers["etag"] for answer in moved} == {'"2"'}
    assert shop.stage.outside("SELECT version FROM orders") == [(2,)]
    # The row that was locked is the one that is judged and removed.
    assert (await shop.ask("DELETE", "o1", if_match='"1"')).status_code == 412
    assert (await shop.ask("DELETE", "o1", if_match='"2"')).status_code == 204


@pytest.fixture(params=[("fastapi", "sqlite-async", "plain"), ("flask", "sqlite", "plain")], ids=["fastapi", "flask"])
async def readable(request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    framework, driver, form = request.param
    async with service(framework, driver, form, address_for(request, driver)) as found:
        await found.ask("PUT", "o1", "a", if_none_match="*")
        yield found


async def test_a_read_has_an_etag_and_is_304_for_those_who_have_it(readable: Service) -> None:
    read = await readable.ask("GET", "o1")
    assert (read.status_code, read.headers["etag"], read.json()["note"]) == (200, '"1"', "a")
    for tags in ('"1"', 'W/"1"', '"0", "1"', "*"):
        unchanged = await readable.ask("GET", "o1", if_none_match=tags)
        assert (unchanged.status_code, unchanged.headers["etag"], unchanged.content) == (304, '"1"', b"")
        assert unchanged.headers["cache-control"] == "no-cache"
        assert "content-type" not in unchanged.headers
    assert (await readable.ask("GET", "o1", if_none_match='"0"')).status_code == 200
    with is_problem(await readable.ask("GET", "o1", if_match='"0"'), 412, "condition-failed"):
        pass
    with is_problem(await readable.ask("GET", "o1", if_none_match="1"), 400, "condition-malformed"):
        pass
    # The condition is about a representation: there is none in a 404.
    assert (await readable.ask("GET", "o9", if_none_match="*")).status_code == 404


# --- what a handler may do wrongly, and what is refused where it is written ---------------------------------------


@pytest.fixture
async def once(sqlite_path: Path) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(sqlite_path, principal=single_principal)
    async with found.transaction() as tx:
        await tx.connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, version INTEGER)")
        await tx.connection.execute("INSERT INTO orders VALUES ('o1', 1)")
    yield found
    await found.close()


_CHANGE = "UPDATE orders SET version = version + 1"


async def test_a_handler_that_does_not_ask_or_does_not_listen_commits_nothing(
    once: AsyncOnefold, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    @app.put("/forgets")
    @once.conditional(etag="version")
    async def forget(tx: Tx[Any]) -> dict[str, int]:
        await tx.connection.execute(_CHANGE)
        return {"version": 2}

    @app.put("/goes-on")
    @once.conditional(etag="version", condition_required=False)
    async def go_on(tx: Tx[Any], condition: Condition) -> dict[str, int]:
        try:
            await condition.lock("orders", where={"id": "o1"})
        except ConditionFailed:
            condition.check({"version": 7})
        await tx.connection.execute(_CHANGE)
        return {"version": 2}

    @app.put("/does-not-await")
    @once.conditional(etag="version")
    async def forget_await(tx: Tx[Any], condition: Condition) -> dict[str, int]:
        condition.lock("orders", where={"id": "o1"})
        await tx.connection.execute(_CHANGE)
        return {"version": 2}

    once.install(app)
    async with calling(app) as client:
        for path, words in (
            ("/forgets", "/forgets is marked"),
            ("/goes-on", "does not hold"),
            ("/does-not-await", "await"),
        ):
            answer = await client.post(path, method="PUT", headers={"if-match": '"7"'})
            with is_problem(answer, 500, "handler-broken") as problem:
                assert words in problem["detail"]
        unconditional = await client.post("/goes-on", method="PUT")
        assert unconditional.status_code == 200
    async with once.transaction() as tx:
        assert (await tx.lock_row("orders", where={"id": "o1"}))["version"] == 2


async def test_a_refusal_is_no_error_in_the_log(once: AsyncOnefold, caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()

    @app.put("/orders/{id_}")
    @once.conditional(etag="version")
    async def replace(id_: str, condition: Condition) -> None:
        await condition.lock("orders", where={"id": id_})

    once.install(app)
    caplog.set_level(logging.WARNING)
    async with calling(app) as client:
        answer = await client.post("/orders/o1", method="PUT", headers={"if-match": '"7"'})
        assert answer.status_code == 412
    assert not caplog.records


def test_what_cannot_be_conditional_is_refused_where_it_is_written(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, principal=single_principal)
    given: Any = 3
    with pytest.raises(ConfigurationError, match="etag=3"):
        once.conditional(etag=given)

    async def version(row: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="async function"):
        once.conditional(etag=version)
    with pytest.raises(ConfigurationError, match="required=3"):
        once.conditional(etag="version", condition_required=given)
    with pytest.raises(ConfigurationError, match="store_down"):
        once.conditional(etag="version", store_down="run")
    with pytest.raises(ConfigurationError, match="conditional=3"):
        once.policy(conditional=given)

    with pytest.raises(ConfigurationError, match="works in steps, and is conditional"):

        @once.conditional(etag="version", required=True)
        def work(steps: Steps) -> None: ...

    app = FastAPI()

    @app.get("/orders")
    @once.conditional(etag="version")
    def read(tx: Tx[Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="a read has none"):
        once.install(app)
    once.close()


def test_openapi_shows_conditions(sqlite_path: Path) -> None:
    once, app = Onefold(sqlite_path, principal=single_principal), FastAPI()

    @app.put("/orders/{id_}")
    @once.conditional(etag="version", repeatable_delete=True)
    def replace(id_: str) -> None: ...

    @app.patch("/orders/{id_}")
    @once.idempotent(conditional=Conditional(etag="version", required=False))
    def change(id_: str) -> None: ...

    @app.get("/orders/{id_}")
    @once.conditional(etag="version")
    def read(id_: str) -> None: ...

    once.install(app)
    path = app.openapi()["paths"]["/orders/{id_}"]
    for method in ("put", "patch"):
        names = [each["name"] for each in path[method]["parameters"]]
        assert {"If-Match", "If-None-Match", "Idempotency-Key"} < set(names)
        assert "ETag" in path[method]["responses"]["200"]["headers"]
        assert "ETag" in path[method]["responses"]["412"]["headers"]
    assert "428" in path["put"]["responses"]
    assert "428" not in path["patch"]["responses"]
    assert path["put"]["x-conditional"] == {"required": True, "repeatable_delete": True}
    assert [each["name"] for each in path["get"]["parameters"]] == ["id_", "If-Match", "If-None-Match"]
    assert {"200", "304"} <= set(path["get"]["responses"])
    assert "ETag" in path["get"]["responses"]["200"]["headers"]
    once.close()
