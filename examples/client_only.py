"""A client only: its key is on disk before the first byte leaves, and it pays once however often it is started.

python -m examples.client_only http://localhost:8000 pay:ord-42
"""

from __future__ import annotations

import sys

import httpx

import onefold


def main(url: str, intent: str) -> None:
    """Pay 500 under an intent, and say what was answered."""
    transport = onefold.retrying(httpx.HTTPTransport(), journal="intents.db")
    headers = {"Authorization": "Bearer sk-acme-1"}
    with httpx.Client(transport=transport, base_url=url, headers=headers, timeout=None) as client:
        answer = client.post("/payments", json={"amount": 500}, extensions={"intent": intent})
    print(answer.status_code, answer.json())


if __name__ == "__main__":
    main(*sys.argv[1:])
