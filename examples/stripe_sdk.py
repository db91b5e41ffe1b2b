"""The real SDK of Stripe against an API of your own: its retries carry a key, and onefold has them happen once.

`python -m examples.stripe_sdk` serves an API in the shape of Stripe's, whose first answer is lost on the way, and has
the SDK pay: it retries by itself, and is answered from the record.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import stripe
from flask import Flask, request

from onefold import Onefold, Request
from onefold.flask import current_transaction

API_KEYS = {"Bearer sk_test_acme": "acme"}


def account(request: Request) -> str | None:
    """Whose key it is: the account that this API key authenticates."""
    return API_KEYS.get(request.header("authorization") or "")


once = Onefold(Path(tempfile.mkdtemp()) / "payments.db", principal=account)
with once.transaction() as tx:
    tx.connection.execute("CREATE TABLE payments (id INTEGER PRIMARY KEY, amount INTEGER, currency TEXT)")

app = Flask(__name__)


@app.post("/v1/payment_intents")
@once.idempotent(required=True)
def create_payment_intent() -> dict[str, Any]:
    """As Stripe's: a form in, JSON out."""
    amount, currency = int(request.form["amount"]), request.form["currency"]
    row = current_transaction().connection.execute(
        "INSERT INTO payments (amount, currency) VALUES (?, ?)", (amount, currency)
    )
    return {"id": f"pi_{row.lastrowid}", "object": "payment_intent", "amount": amount, "currency": currency}


once.install(app)


class LosingServer:
    """The application behind a gateway that loses the first answer."""

    def __init__(self) -> None:
        self.answers = 0

    def __call__(self, environ: Any, start_response: Any) -> Any:
        self.answers += 1
        if self.answers > 1:
            return app.wsgi_app(environ, start_response)
        list(app.wsgi_app(environ, lambda *_: str))  # it is done, and committed
        start_response("502 Bad Gateway", [("Content-Type", "text/plain")])
        return [b"the answer was lost"]


class QuietHandler(WSGIRequestHandler):
    """Without a log."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


def main() -> None:
    """Pay once, with a retry of the SDK's own."""
    gateway = LosingServer()
    with make_server("127.0.0.1", 0, gateway, handler_class=QuietHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = stripe.StripeClient(
            "sk_test_acme", base_addresses={"api": f"http://127.0.0.1:{server.server_port}"}, max_network_retries=2
        )
        made = client.v1.payment_intents.create(params={"amount": 500, "currency": "eur"})
        server.shutdown()
    with once.transaction() as tx:
        [payments] = tx.connection.execute("SELECT count(*) FROM payments").fetchone()
    print(f"{made.id}, asked {gateway.answers} times, payments: {payments}")
    once.close()


if __name__ == "__main__":
    main()
