"""What the services of the shop read from their environment. Unset, they share one SQLite file, which also delivers."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from onefold.brokers._adapters import BrokerGiven
from onefold.prometheus import prometheus_metrics
from onefold.telemetry import Event, Listener

PROCESSOR_URL = os.environ.get("PROCESSOR_URL", "http://127.0.0.1:8001")
#: What runs the warehouse's sagas: sqlite:///..., postgresql://... for several processes, or one of `saga_engines.py`.
SAGAS_URL = os.environ.get("SAGAS_URL", "sqlite:///sagas.db")
PROCESSOR_DATABASE = os.environ.get("PROCESSOR_DATABASE", "processor.db")

#: What a killed process was working on is given to another one after so many seconds. Most systems wait longer.
LEASE_S = 2.0
#: How many items the warehouse begins with.
STOCK = 1000
#: How often the shop's APIs look at what waits in their outbox.
MEASURE_S = float(os.environ.get("SHOP_MEASURE_S", "15"))


#: The API key of the demo's customers. A shop gives one to each account, and keeps only what it hashes to.
API_KEY = "sk-demo"
ACCOUNTS = {sha256(API_KEY.encode()).hexdigest(): "acme"}


def database(service: str) -> str:
    """What ORDERS_DATABASE, PAYMENTS_DATABASE, FULFILMENT_DATABASE name: postgresql://... or a SQLite file."""
    return os.environ.get(f"{service.upper()}_DATABASE", "shop.db")


def broker() -> BrokerGiven:
    """Where the messages travel. Usually one writes broker="local" or broker="nats://...": only the short lease needs
    more."""
    address = os.environ.get("SHOP_BROKER", "local")
    if address == "local":
        return f"local?lease_s={LEASE_S}"
    from onefold.brokers.nats import NatsBroker

    return lambda: NatsBroker(address, ack_wait_s=LEASE_S)


def serve_metrics(app: FastAPI) -> None:
    """GET /metrics, for Prometheus."""

    @app.get("/metrics", include_in_schema=False)
    def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)


def listeners(service: str) -> list[Listener]:
    """onefold's events of this process become metrics; with SHOP_EVENTS, also a file of its own in that directory,
    one JSON object per line."""
    directory = os.environ.get("SHOP_EVENTS")
    if directory is None:
        return [prometheus_metrics()]
    path = Path(directory, f"{service}-{os.getpid()}.jsonl")

    def write(event: Event) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n")

    return [prometheus_metrics(), write]
