"""A shop whose processes export their spans to one file: its application, its relay, its consumers, its clients.

    python -m tests.observe.traced_shop serve shop PORT    the application; a file named `kill` kills it in its handler
    python -m tests.observe.traced_shop serve stock PORT   the service that the shop's consumer calls
    python -m tests.observe.traced_shop order URL      a client with a journal: it orders, with retries
    onefold relay tests.observe.traced_shop:once
    onefold consume tests.observe.traced_shop:once     its first attempt at a message fails

SHOP is the directory they share, PROCESS what a process is called in its spans.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from onefold import AsyncOnefold, Message, Retrying, RetryPolicy, intent, single_principal
from onefold.fastapi import Tx
from tests.observe.traced import FileExporter, Traced

FOLDER = Path(os.environ["SHOP"])
INTENT = "order:cart-7"

traced = Traced(FileExporter(FOLDER / "spans.jsonl", os.environ["PROCESS"]))
once = AsyncOnefold(
    FOLDER / "shop.db",
    source="shop",
    broker=os.environ.get("SHOP_BROKER"),
    principal=single_principal,
    listener=traced.listener,
)
#: Another service, with a database of its own.
stock = AsyncOnefold(FOLDER / "stock.db", principal=single_principal, listener=traced.listener)
app, stock_app = FastAPI(), FastAPI()
retrying = Retrying(
    RetryPolicy(attempts_max=100, deadline_s=60, breaker=None, budget=None),
    journal=FOLDER / "journal.db",
    listener=traced.listener,
)


def is_first(name: str) -> bool:
    """Whether a file with this name was there; it is not any more."""
    path = FOLDER / name
    found = path.exists()
    path.unlink(missing_ok=True)
    return found


@app.post("/orders", status_code=201)
@once.idempotent(required=True)
async def order(tx: Tx[Any]) -> dict[str, str]:
    if is_first("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    await tx.publish("ordered", {"cart": 7})
    return {"order": "placed"}


@stock_app.post("/reservations", status_code=201)
@stock.idempotent(required=True)
async def reserve() -> dict[str, str]:
    return {"stock": "reserved"}


once.install(app)
stock.install(stock_app)


@once.consumer("stock", topic="ordered")
async def take(message: Message) -> None:
    if is_first("fail"):
        raise ConnectionError("the stock cannot be reached")
    url = (FOLDER / "url").read_text()
    async with retrying.around(httpx.AsyncClient()) as client:
        answer = await client.post(f"{url}/reservations", headers={"Idempotency-Key": f"reserve-{message.id}"})
    answer.raise_for_status()
    (FOLDER / "reserved").touch()


def place_order(url: str) -> None:
    with retrying.around(httpx.Client()) as client, intent(INTENT):
        answer = client.post(f"{url}/orders", headers={"Correlation-ID": "case-7"})
    print(answer.status_code, answer.headers.get("idempotent-replayed"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", name, port]:
            uvicorn.run(stock_app if name == "stock" else app, port=int(port), log_level="warning")
        case ["order", url]:
            place_order(url)
        case words:
            raise SystemExit(f"serve shop|stock PORT, or order URL; not {words}")
