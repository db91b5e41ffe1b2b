"""The console in strange places: over tables of an earlier release, over sealed answers without their keys, beside a
transaction that holds the database, and in processes that were forked."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Keyring, Onefold, single_principal
from onefold._app.migrations import MIGRATIONS
from onefold._console.pages import SECTIONS
from onefold.console import Console, console
from tests.console.browsing import ACT, VIEW, Visitor, text_of
from tests.support.patience import PATIENCE_S


def open_console(once: AsyncOnefold | Onefold) -> Console:
    return console(once, view_token=VIEW, act_token=ACT)


@pytest.mark.parametrize("version", [6, 14, 21])
async def test_over_tables_of_an_earlier_release_every_page_says_what_to_do(
    postgres_dsn: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None crashes, and one can look at health, and sign out."""
    known = MIGRATIONS["postgres"]
    once = AsyncOnefold(postgres_dsn, source="shop")
    with monkeypatch.context() as patched:
        patched.setitem(MIGRATIONS, "postgres", {each: sql for each, sql in known.items() if each <= version})
        await once.migrate()
    visitor = Visitor(open_console(once))
    await visitor.sign_in(ACT)
    paths = [page.path for section in SECTIONS for page in section.pages if page.method == "GET"]
    paths.remove("/overview/live")  # a stream
    for path in paths:
        page = await visitor.client.get(path.replace("{", "").replace("}", ""))
        assert page.status_code != 500, path
        assert page.status_code != 503 or "onefold migrate" in text_of(page), path
    health = await visitor.get("/health")
    assert (health.status_code, "onefold migrate" in text_of(health)) == (200, True)
    assert (await visitor.submit("/health", "/logout")).status_code == 303
    assert (await visitor.get("/health")).status_code == 303
    await once.close()


async def test_a_sealed_answer_is_shown_where_its_key_is_and_says_so_where_it_is_not(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, principal=single_principal, sealer=Keyring({"a": os.urandom(32)}, write="a"))
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent()
    async def order() -> dict[str, str]:
        return {"card": "4242"}

    once.install(app)
    app.mount("/console", open_console(once))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        assert (await client.post("/orders", headers={"Idempotency-Key": "k"})).status_code == 200
    stranger = AsyncOnefold(sqlite_path, principal=single_principal)
    for visitor, opens in ((Visitor(app, root="/console"), True), (Visitor(open_console(stranger)), False)):
        await visitor.sign_in(ACT)
        [key] = re.findall(r'/keys/([0-9a-f]{32})"', (await visitor.get("/keys")).text)
        page = text_of(await visitor.get(f"/keys/{key}"))
        assert "Done: answered 200" in page
        assert "4242" not in page
        shown = text_of(await visitor.submit(f"/keys/{key}", f"/keys/{key}/answer"))
        assert ("4242" in shown, "It cannot be opened here" in shown) == (opens, not opens)
    await once.close()
    await stranger.close()


async def test_a_query_that_waits_holds_up_nothing_else_of_the_application(sqlite_path: Path) -> None:
    """A sync Onefold, whose console runs on the loop of its server all the same."""
    once = Onefold(sqlite_path, source="shop")
    once.migrate()
    visitor = Visitor(open_console(once))
    await visitor.sign_in(ACT)
    with closing(sqlite3.connect(sqlite_path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        leaving = asyncio.create_task(visitor.submit("/audit", "/logout"))  # writes a line, and so has to wait
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(20):
                begun = time.monotonic()
                assert (await Visitor(open_console(once)).get("/login")).status_code == 200
                assert time.monotonic() - begun < PATIENCE_S
        assert not leaving.done()
        other.execute("ROLLBACK")
        assert (await leaving).status_code == 303
    once.close()


def test_processes_that_were_forked_from_one_that_made_the_console_share_its_sessions(sqlite_path: Path) -> None:
    """As gunicorn's with --preload: what is made before the fork is stateless, or made anew by each."""
    once = AsyncOnefold(sqlite_path)
    app = open_console(once)
    with asyncio.Runner() as runner:
        visitor = Visitor(app)
        runner.run(visitor.sign_in(ACT))
        cookies = dict(visitor.client.cookies)
        assert runner.run(look(app, cookies)) == 200
        runner.run(once.close())
    for expected, out in ((200, False), (200, True), (303, False)):  # the second signs out: the third knows
        child = os.fork()
        if child == 0:  # pragma: no cover
            os._exit(0 if in_child(app, cookies, out=out) == expected else 1)
        assert os.waitpid(child, 0)[1] == 0, (expected, out)


def in_child(app: Console, cookies: dict[str, str], *, out: bool) -> int:
    with asyncio.Runner() as runner:
        status = runner.run(look(app, cookies))
        if out:
            runner.run(visitor_with(app, cookies).submit("/audit", "/logout"))
        return status


async def look(app: Console, cookies: dict[str, str]) -> int:
    return (await visitor_with(app, cookies).get("/audit")).status_code


def visitor_with(app: Console, cookies: dict[str, str]) -> Visitor:
    found = Visitor(app)
    for name, value in cookies.items():
        found.client.cookies.set(name, value, domain="console.test", path="/")
    return found
