"""Flask and SQLite, and nothing else to install or start: `python -m examples.flask_sqlite`."""

from __future__ import annotations

import os
from typing import Any

from flask import Flask, request

from onefold import Onefold, Request
from onefold.flask import current_transaction

API_KEYS = {"Bearer sk-acme-1": "acme"}  # yours are in a table, hashed


def account(request: Request) -> str | None:
    """Whose key it is: the account that this API key authenticates."""
    return API_KEYS.get(request.header("authorization") or "")


once = Onefold(os.environ.get("ONEFOLD_DATABASE", "payments.db"), principal=account)
with once.transaction() as tx:
    tx.connection.execute("CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, amount INTEGER)")

app = Flask(__name__)


@app.post("/payments")
@once.idempotent(required=True)
def pay() -> tuple[dict[str, Any], int]:
    """One payment for one key."""
    amount = request.get_json()["amount"]
    row = current_transaction().connection.execute("INSERT INTO payments (amount) VALUES (?)", (amount,))
    return {"id": row.lastrowid, "amount": amount}, 201


once.install(app)

if __name__ == "__main__":
    with once.reaping():
        app.run(port=int(os.environ.get("PORT", "8000")))
