"""A customer that pays by a real SDK, through a client that retries: `python -m tests.client.sdks.customer`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import openai
import requests
import stripe

import onefold
from onefold import RetryPolicy

PAID = b'{"id": "pi_1", "object": "payment_intent", "status": "succeeded"}'
TALKED = b'{"id": "c_1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'
JSON = {"Content-Type": "application/json"}

#: Limited by nothing but its attempts.
POLICY = RetryPolicy(attempts_max=4, budget=None, breaker=None)


def stripe_client(url: str, session: requests.Session, retries: int = 0) -> stripe.StripeClient:
    session.trust_env = False
    return stripe.StripeClient(
        "sk_test_1",
        http_client=stripe.RequestsClient(session=session),
        base_addresses={"api": url},
        max_network_retries=retries,
    )


def pay(client: stripe.StripeClient, key: str | None = None) -> str:
    """One payment; the key of the SDK's own unless one is handed over."""
    options: Any = {} if key is None else {"idempotency_key": key}
    made = client.v1.payment_intents.create(params={"amount": 500, "currency": "eur"}, options=options)
    return made.id


def openai_client(url: str, http_client: Any, retries: int = 0) -> openai.OpenAI:
    return openai.OpenAI(api_key="sk-1", base_url=url, http_client=http_client, max_retries=retries)


def talk(client: openai.OpenAI) -> str:
    made = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    return made.id


def by_stripe(url: str, journal: str) -> str:
    with onefold.retrying(requests.Session(), POLICY, journal=journal) as session, onefold.intent("pay:42") as key:
        return pay(stripe_client(url, session), key)


def by_stripe_itself(url: str, journal: str) -> str:
    """Without handing over the key: the SDK makes one."""
    with onefold.retrying(requests.Session(), POLICY, journal=journal) as session, onefold.intent("pay:42"):
        return pay(stripe_client(url, session))


def by_openai(url: str, journal: str) -> str:
    http_client = onefold.retrying(openai.DefaultHttpxClient(trust_env=False), POLICY, journal=journal)
    with http_client, onefold.intent("pay:42"):
        return talk(openai_client(url, http_client))


WAYS: dict[str, Callable[[str, str], str]] = {
    "stripe": by_stripe,
    "stripe-itself": by_stripe_itself,
    "openai": by_openai,
}
ANSWERS = {"stripe": PAID, "stripe-itself": PAID, "openai": TALKED}


if __name__ == "__main__":
    print(WAYS[sys.argv[1]](*sys.argv[2:]))
