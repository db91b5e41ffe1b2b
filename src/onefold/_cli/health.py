"""GET /healthz and /metrics for a process that serves nothing else: one answer per connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import typer

from onefold._cli.output import echo_stderr
from onefold._kernel.telemetry import Listener
from onefold.errors import ConfigurationError

#: Reachable from this machine only, by default: probes of an orchestrator come from elsewhere.
HOST = typer.Option(
    "--health-host", help="The address /healthz and /metrics are served on; 0.0.0.0 for probes from elsewhere."
)
PORT = typer.Option(
    "--health-port", min=0, max=65_535, help="Serve GET /healthz, and /metrics, on this port; 0: on a free one."
)
STALE_S = typer.Option("--health-stale", min=1, help="Seconds without progress after which /healthz answers 503.")

_REQUEST_S_MAX = 5.0
_REQUEST_BYTES_MAX = 16 * 1024
_PHRASES = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True)
class HealthPage:
    """Where /healthz and /metrics are served, and what makes /healthz 503. Without a port they are not."""

    host: str
    port: int | None
    stale_s: float
    metrics: Listener | None = field(init=False, default=None)
    """Updates the metrics that are served; None where prometheus_client is not installed."""

    def __post_init__(self) -> None:
        with suppress(ModuleNotFoundError):
            if self.port is not None:
                from onefold.prometheus import prometheus_metrics

                object.__setattr__(self, "metrics", prometheus_metrics())


@asynccontextmanager
async def healthz(health: HealthPage, alive: Callable[[], Mapping[str, float]]) -> AsyncIterator[None]:
    """Serve while the block lasts, and print the address. 503: a worker made no progress in time."""
    if health.port is None:
        yield
        return

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_REQUEST_S_MAX):
                writer.write(await _answer(reader, alive, health))
                await writer.drain()
        except (TimeoutError, OSError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    try:
        server = await asyncio.start_server(serve, health.host, health.port, limit=_REQUEST_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(
            f"--health-port {health.port}: this process cannot listen there at {health.host}: {error.strerror or error}"
        ) from error
    async with server:
        host = f"[{health.host}]" if ":" in health.host else health.host
        address = f"http://{host}:{server.sockets[0].getsockname()[1]}"
        echo_stderr(
            f"health at {address}/healthz" + ("" if health.metrics is None else f", metrics at {address}/metrics")
        )
        yield


async def _answer(reader: asyncio.StreamReader, alive: Callable[[], Mapping[str, float]], health: HealthPage) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, path, _ = head.partition(b"\r\n")[0].decode("ascii").split(" ")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        return _response(400, {})
    page = path.partition("?")[0]
    if page not in ("/healthz", "/metrics"):
        return _response(404, {}, method)
    if page == "/metrics" and health.metrics is None:
        missing = "prometheus_client is not installed: pip install 'onefold[prometheus]'"
        return _response(404, {"missing": missing}, method)
    if method not in ("GET", "HEAD"):
        return _response(405, {}, method)
    if page == "/metrics":
        return _metrics(method)
    turns = {name: round(seconds, 3) for name, seconds in alive().items()}
    return _response(200 if all(seconds <= health.stale_s for seconds in turns.values()) else 503, turns, method)


def _metrics(method: str) -> bytes:
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return _write(200, generate_latest(), CONTENT_TYPE_LATEST, method)


def _response(status: int, content: Mapping[str, object], method: str = "GET") -> bytes:
    return _write(status, json.dumps(content).encode(), "application/json", method)


def _write(status: int, body: bytes, media_type: str, method: str) -> bytes:
    head = (
        f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: {media_type}\r\ncontent-length: {len(body)}\r\n"
        "cache-control: no-store\r\nconnection: close\r\n\r\n"
    ).encode()
    return head if method == "HEAD" else head + body
