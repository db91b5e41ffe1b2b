"""An application whose one request charges a card and then waits where a file says so."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from onefold import AsyncOnefold, single_principal
from onefold.fastapi import Steps

HERE = Path(os.environ.get("RIDES", "."))
once = AsyncOnefold(HERE / "shop.db", principal=single_principal, defaults={"lease_s": 2.0})


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, str]]:
    with (HERE / "lives").open("a") as file:
        file.write("started\n")
    yield {"started": "yes"}
    with (HERE / "lives").open("a") as file:
        file.write("ended\n")


app = FastAPI(lifespan=lifespan)


def wait_for_more(place: str) -> None:
    """Until the file is gone."""
    (HERE / f"at-{place}").touch()
    while (HERE / f"hold-{place}").exists():
        time.sleep(0.01)


async def charge(key: str) -> str:
    with (HERE / "charged").open("a") as file:
        file.write(f"{key}\n")
    wait_for_more("charge")
    return key


@app.post("/rides", status_code=201)
@once.idempotent(required=True)
async def create_ride(work: Steps) -> dict[str, str]:
    paid = await work.call("charge", charge, work.derive("charge"))
    wait_for_more("charged")
    if (HERE / "breaks").exists():
        raise RuntimeError("the process breaks here")
    return {"paid": paid}


once.install(app)
