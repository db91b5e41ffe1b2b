"""The orders of the shop behind Flask: the tables, accounts and answers of `examples.shop.orders`, and another account.

It sets a cookie, and has a second route, for the checks that need them.
"""

from __future__ import annotations

from hashlib import sha256
from uuid import uuid4

from flask import Flask, request
from flask.typing import ResponseReturnValue

from examples.shop.settings import ACCOUNTS, database
from onefold import Onefold
from onefold.flask import current_transaction

OTHER_API_KEY = "sk-other"
KNOWN = ACCOUNTS | {sha256(OTHER_API_KEY.encode()).hexdigest(): "umbrella"}


def account() -> str | None:
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return KNOWN.get(sha256(given.encode()).hexdigest())


once = Onefold(database("orders"), source="orders", principal=account)
app = Flask("orders")


@app.post("/orders")
@once.idempotent(required=True)
def place() -> ResponseReturnValue:
    return _insert()


@app.post("/gifts")
@once.idempotent(required=True)
def give() -> ResponseReturnValue:
    return _insert()


def _insert() -> ResponseReturnValue:
    order, wish, tx = str(uuid4()), request.get_json(), current_transaction()
    tx.connection.execute(
        "INSERT INTO orders (id, card, amount, attempt, state, correlation) VALUES (?, ?, ?, 1, 'placed', ?)",
        (order, wish["card"], wish["amount"], request.headers["Correlation-Id"]),
    )
    _ = tx.publish("order.placed", {"order": order}, key=order)
    return {"id": order, "state": "placed"}, 201, {"Location": f"/orders/{order}", "Set-Cookie": f"last={order}"}


once.install(app)
