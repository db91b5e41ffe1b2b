"""A sampler, a processor or a propagator that raises costs spans, and nothing else."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from onefold import AsyncOnefold, Retrying, single_principal
from onefold.fastapi import Tx
from onefold.otel import otel_traces


class FailingSampler(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    def get_description(self) -> str:
        return "fails"


class FailingProcessor(SpanProcessor):
    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, *_: Any, **__: Any) -> None:
        if self._at == "start":
            raise RuntimeError("planted")

    def on_end(self, *_: Any) -> None:
        if self._at == "end":
            raise RuntimeError("planted")


@pytest.mark.parametrize("at", ["sample", "start", "end"])
async def test_what_opentelemetry_raises_breaks_no_request_event_or_call(
    tmp_path: Path, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider(sampler=FailingSampler() if at == "sample" else ALWAYS_ON)
    provider.add_span_processor(FailingProcessor(at))
    listener = otel_traces(provider)
    once = AsyncOnefold(tmp_path / "shop.db", source="shop", principal=single_principal, listener=listener)
    app = FastAPI()
    handled: list[str] = []

    @app.post("/payments", status_code=201)
    @once.idempotent(required=True)
    async def pay(tx: Tx[Any]) -> dict[str, int]:
        handled.append(await tx.publish("paid", {}))
        return {"payments": len(handled)}

    once.install(app)
    inside = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    with caplog.at_level(logging.WARNING, "onefold.telemetry"):
        async with Retrying(listener=listener).around(inside) as client:
            answers = [await client.post("/payments", headers={"Idempotency-Key": "k1"}) for _ in range(2)]
    await once.close()
    assert [(answer.status_code, answer.json()) for answer in answers] == [(201, {"payments": 1})] * 2
    lines = [record for record in caplog.records if record.name == "onefold.telemetry"]
    assert len(lines) == 1  # once, however many spans there are
    assert "planted" in lines[0].getMessage()
