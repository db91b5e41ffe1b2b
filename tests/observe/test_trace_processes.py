"""One trace through real processes: a client, an application that is killed, a relay, a consumer, a foreign call.

And the one query that docs/traces.md promises: by the hash of a key it finds the original, its retries and the replay.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from onefold import Onefold
from onefold.telemetry import hash_key
from onefold.testing.fault_proxy import reserve_port
from onefold.testing.servers import PrivateNats, PrivateValkey
from tests.cli.commands import started, until
from tests.observe.traced import SeenSpan, read_spans, select
from tests.support.fork_server import PROGRAMS, Child, ForkServer, fork_server
from tests.support.patience import PATIENCE_S

MODULE = "tests.observe.traced_shop"
HOST = "127.0.0.1"


def interpreter() -> ForkServer:
    return fork_server(f"{PROGRAMS}; import tests.observe.traced")


class Shop:
    """The processes of one shop, and what they have exported."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.folder = folder
        self.shared = {"SHOP": str(folder), "SHOP_BROKER": broker}
        Onefold(folder / "shop.db").close()
        (folder / "spans.jsonl").touch()

    def environment(self, process: str) -> dict[str, str]:
        return {**os.environ, **self.shared, "PROCESS": process}

    @contextmanager
    def serving(self, process: str, port: int) -> Iterator[Child]:
        service = process.partition(" ")[0]
        log = self.folder / f"{process}.log"
        with Path(os.devnull).open() as nothing, log.open("wb") as file:
            child = interpreter().start(
                "-m",
                MODULE,
                "serve",
                service,
                str(port),
                environment=self.environment(process),
                streams=(nothing, file, file),
            )
        try:
            yield child
        finally:
            child.kill()
            child.wait(PATIENCE_S)

    def order(self, process: str, url: str) -> str:
        done = interpreter().run(
            "-m", MODULE, "order", url, environment=self.environment(process), within_s=PATIENCE_S
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def spans(self) -> list[SeenSpan]:
        return read_spans(self.folder / "spans.jsonl")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code > 0
    except httpx.TransportError:
        return False


@pytest.fixture(params=["local", *(pytest.param(name, marks=pytest.mark.soak) for name in ("nats", "valkey"))])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    match request.param:
        case "nats":
            with PrivateNats() as nats:
                yield Shop(tmp_path, nats.url)
        case "valkey":
            with PrivateValkey() as valkey:
                yield Shop(tmp_path, valkey.url)
        case local:
            yield Shop(tmp_path, local)


def test_one_query_finds_the_original_its_retries_and_the_replay(shop: Shop) -> None:
    with ExitStack() as processes, reserve_port() as reserved, reserve_port() as also_reserved:
        port, stock_port = reserved.getsockname()[1], also_reserved.getsockname()[1]
        url = f"http://{HOST}:{port}"
        (shop.folder / "url").write_text(f"http://{HOST}:{stock_port}")
        processes.enter_context(shop.serving("stock", stock_port))
        for name in ("kill", "fail"):
            (shop.folder / name).touch()
        first = processes.enter_context(shop.serving("shop 1", port))
        until(lambda: _answers(url) or first.poll() is not None)
        with Path(os.devnull).open() as nothing, (shop.folder / "client.log").open("wb") as log:
            environment = shop.environment("client 1")
            client = interpreter().start(
                "-m", MODULE, "order", url, environment=environment, streams=(nothing, log, log)
            )
        assert first.wait(PATIENCE_S) == -9
        processes.enter_context(shop.serving("shop 2", port))
        assert client.wait(PATIENCE_S) == 0, (shop.folder / "client.log").read_text()
        # The client's process was restarted, and makes its intent once more.
        assert shop.order("client 2", url) == "201 true"
        for command in ("consume", "relay"):
            words = (command, f"{MODULE}:once")
            processes.enter_context(started(*words, cwd=shop.folder, **shop.shared, PROCESS=command))
        until(lambda: (shop.folder / "reserved").exists())
        until(lambda: select(shop.spans(), onefold__outcome="handled"))
    check_query(shop.spans())
    check_trace(shop.spans())


def check_query(spans: list[SeenSpan]) -> None:
    """The query: all spans with the hash of the key."""
    key_hash = select(spans, onefold__intent="order:cart-7")[0]["onefold.key.hash"]
    found = select(spans, onefold__key__hash=key_hash)
    calls = [span for span in found if span.name == "onefold POST"]
    attempts = [span for span in found if span.kind == "client"]
    requests = [span for span in found if span.kind == "server"]
    assert [call.process for call in calls] == ["client 1", "client 2"]
    assert [call["http.response.status_code"] for call in calls] == [201, 201]
    assert len(attempts) == calls[0]["onefold.attempts"] + 1
    assert attempts[0].failed, "the one whose server was killed"
    assert [span["http.request.resend_count"] for span in attempts[:2]] == [None, 1]
    run, replay = requests
    assert (run.process, run["onefold.outcome"], run["onefold.end"]) == ("shop 2", "run", "stored")
    assert replay["onefold.outcome"] == "replay"
    assert replay.links == (run.context,)
    # Each request is the child of the attempt that made it; both calls are traces of their own.
    assert [span.parent for span in requests] == [attempts[-2].id, attempts[-1].id]
    assert run.trace == calls[0].trace != replay.trace


def check_trace(spans: list[SeenSpan]) -> None:
    """From the request on, one trace: outbox, relay, consumer, and the call that the consumer makes."""
    [run] = select(spans, onefold__operation="POST /orders", onefold__outcome="run")
    trace = [span for span in spans if span.trace == run.trace]
    [published] = [span for span in trace if span.name == "publish ordered"]
    sent = [span for span in trace if span.name == "send ordered"]
    failed, handled = [span for span in trace if span.name == "process ordered"]
    [call] = [span for span in trace if span.name == "onefold POST" and span.process == "consume"]
    [reservation] = select(trace, onefold__operation="POST /reservations")
    assert published.parent == run.id
    assert {(span.process, span.parent) for span in sent} == {("relay", published.id)}
    assert [(span["onefold.outcome"], span.parent) for span in (failed, handled)] == [
        ("failed", published.id),
        ("handled", published.id),
    ]
    assert call.parent == handled.id
    assert reservation.process == "stock"
    assert reservation.parent in {span.id for span in trace if span.parent == call.id}
    assert {span["onefold.correlation_id"] for span in (run, published, *sent, failed, handled)} == {"case-7"}
    told = repr(spans)
    assert f"reserve-{handled['messaging.message.id']}" not in told, "a key in clear"
    assert hash_key(f"reserve-{handled['messaging.message.id']}") == reservation["onefold.key.hash"]


def test_control_a_consumer_without_the_context_is_not_in_the_trace() -> None:
    """The checks above would fail if the context were lost on the way."""
    now = time.time_ns()

    def seen(name: str, trace: str, parent: str | None, **attributes: object) -> SeenSpan:
        named = {key.replace("__", "."): value for key, value in attributes.items()}
        return SeenSpan(name, "internal", trace, name, parent, (), False, named, "x", now)

    spans = [
        seen("POST /orders", "t", None, onefold__operation="POST /orders", onefold__outcome="run"),
        seen("publish ordered", "t", "POST /orders"),
        seen("process ordered", "another", None),
    ]
    with pytest.raises((AssertionError, ValueError)):
        check_trace(spans)
