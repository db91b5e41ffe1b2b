"""Health in the console: what is well, what is not, and the way out."""

from __future__ import annotations

import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, single_principal
from onefold._app.base_app import run_flow
from onefold._app.diagnosis import diagnose
from onefold._inbox.pausing import pause
from onefold._inbox.registry import register
from tests.console.browsing import Visitor, text_of
from tests.console.test_dead_letters import Failing
from tests.console.test_works import begin


async def test_an_idle_application_is_well(viewer: Visitor) -> None:
    text = text_of(await viewer.get("/health"))
    assert "All is well." in text
    assert "Tables well Up to date." in text


async def test_the_page_has_what_doctor_says(viewer: Visitor, once: AsyncOnefold) -> None:
    """Of this database, and of the routes of an application, which may be kept for too short a time."""
    text = text_of(await viewer.get("/health"))
    said = [f"{each.what} well {each.said}" for each in await run_flow(once, diagnose)]
    assert len(said) > 5
    assert [line for line in said if line not in text] == []
    app = FastAPI()

    @app.post("/orders")
    @once.idempotent(retention_s=60, principal=single_principal)
    async def order() -> None: ...

    once.install(app)
    assert "Retention look Answers are kept for less than an hour: POST /orders (60 s)" in text_of(
        await viewer.get("/health")
    )


async def test_a_page_without_its_tables_names_the_way_out_once(viewer: Visitor, once: AsyncOnefold) -> None:
    await Failing(once).backend.change("DROP TABLE onefold_outbox")
    page = await viewer.get("/outbox")
    assert page.status_code == 503
    assert text_of(page).lower().count("run `onefold migrate`") == 1


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("dead letter", "Dead letters act Of billing."),
        ("parked work", "Works act Some are parked"),
        ("paused consumer", "Consumer ship look 1 process runs. It is paused by ada."),
        ("missing table", "Tables act Migrations are missing"),
    ],
)
async def test_what_is_not_well_is_named(viewer: Visitor, once: AsyncOnefold, trouble: str, said: str) -> None:
    failing = Failing(once)
    if trouble == "dead letter":
        await failing.bury("m1")
    elif trouble == "parked work":
        await begin(once, park="it failed too often")
    elif trouble == "paused consumer":
        await run_flow(once, lambda dialect: register(dialect, "ship", "p-1", ["order.placed"]))
        await run_flow(once, lambda dialect: pause(dialect, "ship", "ada"))
    else:
        await failing.backend.change("DELETE FROM onefold_migration WHERE version = 15")
    text = text_of(await viewer.get("/health"))
    assert said in text
    assert "need a look" in text
