"""The same as `flask_shop`, with FastAPI."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Response
from pydantic import BaseModel

from examples.shop.database import execute
from examples.shop.settings import API_KEY, database
from onefold import AsyncOnefold, Request
from onefold.fastapi import Tx

OTHER_API_KEY = "sk-other"
KNOWN = {f"Bearer {API_KEY}": "acme", f"Bearer {OTHER_API_KEY}": "umbrella"}


def account(request: Request) -> str | None:
    return KNOWN.get(request.header("authorization") or "")


once = AsyncOnefold(database("orders"), source="orders", principal=account)
app = FastAPI()
once.install(app)


class Wish(BaseModel):
    card: str
    amount: int


@app.post("/orders", status_code=201)
@app.post("/gifts", status_code=201)
@once.idempotent(required=True, strict=True)
async def place(wish: Wish, tx: Tx[Any], response: Response) -> dict[str, str]:
    order = str(uuid4())
    await execute(
        tx,
        "INSERT INTO orders (id, card, amount, attempt, state, correlation) VALUES ($1, $2, $3, 1, 'placed', '')",
        order,
        wish.card,
        wish.amount,
    )
    response.headers["Location"] = f"/orders/{order}"
    response.set_cookie("last", order)
    return {"id": order, "state": "placed"}
