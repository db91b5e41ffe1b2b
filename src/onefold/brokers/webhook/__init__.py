"""Webhooks: every event is a signed HTTP request to the endpoints of its topic, and their answers are its confirm.

Invariant: a message counts as confirmed when each of its endpoints has answered it with a 2xx. It is sent with the
same id and the same Idempotency-Key every time, so that a receiver can tell a repetition.

Envelope: a CloudEvent in structured mode, so that its id, type, source, key and version are part of the body, which is
signed as in Standard Webhooks (webhook-id, webhook-timestamp, webhook-signature). `read_webhook` checks and reads it.
"""

from __future__ import annotations

from onefold.brokers.webhook._broker import WebhookBroker
from onefold.brokers.webhook._sender import EndpointAnswer, HttpxSender, Sender
from onefold.brokers.webhook._signature import SECRET_PREFIX, read_webhook, verify_webhook

__all__ = [
    "SECRET_PREFIX",
    "EndpointAnswer",
    "HttpxSender",
    "Sender",
    "WebhookBroker",
    "read_webhook",
    "verify_webhook",
]
