"""Connections are given back, also by calls that are broken off, and by errors that come in chunks."""

from __future__ import annotations

import asyncio
import ssl
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from requests.adapters import HTTPAdapter

import onefold
from onefold import Retrying, RetryPolicy
from onefold._client.journal.flow import Journal
from onefold._kernel.effects import Call
from onefold.clients import Reason, options, report_of
from onefold.telemetry import AttemptEnded, CallEnded, Event
from onefold.testing.scripted_server import Act, Chunks, Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind, only
from tests.support.patience import PATIENCE_S

PIECES = (b"x" * 100, b"y" * 100)


@only(lambda kind: kind.on_tasks)
async def test_a_call_that_is_cancelled_while_its_end_is_noted_gives_its_connection_back(
    kind: Kind, patient: RetryPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noting = asyncio.Event()

    async def resolve(self: Journal, intent: str, status: int, *_: object, **__: object) -> None:
        async def stand_still() -> None:
            noting.set()
            await asyncio.Event().wait()

        await Call(stand_still)

    monkeypatch.setattr(Journal, "resolve", resolve)
    retrying = Retrying(patient, journal=tmp_path / "journal.db")
    with ScriptedServer([Reply(200, b"x" * 3_000_000), Reply(200)]) as server:  # more than is read by an attempt
        async with kind.opened(retrying, connections_max=1) as caller:

            async def pay() -> None:
                with onefold.intent("pay:1"):
                    await caller.send("POST", server.url)

            task = asyncio.create_task(pay())
            async with asyncio.timeout(PATIENCE_S):
                await noting.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await caller.send("GET", server.url)).status == 200
    await retrying.aclose()


def test_a_pool_of_requests_that_has_nothing_to_give_is_waited_for_until_the_deadline(patient: RetryPolicy) -> None:
    ended: list[Any] = []

    def ask() -> None:
        with options(deadline_s=0.2):
            try:
                ended.append(session.get(server.url))
            except requests.ConnectionError as error:
                ended.append(error)

    # More than is read by an attempt: the first call holds the only connection.
    with ScriptedServer([Reply(200, b"x" * 3_000_000)]) as server, requests.Session() as session:
        session.mount("http://", Retrying(patient).around(HTTPAdapter(pool_maxsize=1, pool_block=True)))
        with session.get(server.url, stream=True):
            waiting = threading.Thread(target=ask, daemon=True)
            waiting.start()
            waiting.join(5)  # without a limit it waits for ever
            assert isinstance(ended[0], requests.ConnectTimeout)
            assert len(server.requests) == 1
        session.get(server.url, stream=True).close()


async def test_errors_in_chunks_leave_their_connection_to_the_next_attempt(kind: Kind, patient: RetryPolicy) -> None:
    script: list[Act] = [*[Chunks(PIECES, status=503)] * 3, Reply(200, b"done")]
    with ScriptedServer(script) as server:
        async with kind.opened(Retrying(patient)) as caller:
            assert (await caller.send("GET", server.url)).body == b"done"
        assert len(server.requests) == 4
        assert server.connections == 1


async def test_an_error_in_chunks_that_is_handed_on_is_whole(kind: Kind, patient: RetryPolicy) -> None:
    pieces = (b"x" * 50_000, b"y" * 50_000)  # more than is read of an error
    with ScriptedServer([Chunks(pieces, status=404), Chunks(PIECES, status=404)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            assert (await caller.send("GET", server.url)).body == b"".join(pieces)
            assert (await caller.send("GET", server.url)).body == b"".join(PIECES)


async def test_the_exceptions_of_aiohttp_are_its_own(patient: RetryPolicy) -> None:
    with ScriptedServer([Reset()]) as server:
        async with aiohttp.ClientSession(middlewares=[Retrying(patient).middleware]) as session:
            for _ in range(2):
                with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)) as raised:
                    await session.get(server.url)
                report = report_of(raised.value)
                assert report is not None
                assert report.attempts == 4
        assert len(server.requests) == 8


class Untrusted:
    """A server whose certificate nobody has signed; how often it was called."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(1)
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
            .sign(key, hashes.SHA256())
        )
        place = folder / "server.pem"
        place.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(place)
        self.calls = 0

    async def __aenter__(self) -> Untrusted:
        self._server = await asyncio.start_server(self._greet, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        try:
            await writer.start_tls(self._context)
        except (ssl.SSLError, OSError):
            pass
        finally:
            writer.close()


async def ask(kind: Kind, retrying: Retrying, url: str) -> None:
    vendor: Any = kind.vendor
    if kind.name == "aiohttp":
        async with aiohttp.ClientSession(middlewares=[retrying.middleware]) as session:
            await session.get(url)
    elif kind.name == "requests":
        with retrying.around(vendor.Session()) as session:
            await asyncio.to_thread(session.get, url)
    elif kind.on_tasks:
        async with retrying.around(vendor.AsyncClient()) as client:
            await client.get(url)
    else:
        with retrying.around(vendor.Client()) as client:
            await asyncio.to_thread(client.get, url)


async def test_a_host_that_cannot_prove_who_it_is_is_not_asked_again(
    kind: Kind, patient: RetryPolicy, tmp_path: Path
) -> None:
    heard: list[Event] = []
    async with Untrusted(tmp_path) as server:
        with pytest.raises(Exception, match=r"(?i)certificate"):
            await ask(kind, Retrying(patient, listener=heard.append), f"https://127.0.0.1:{server.port}/")
    assert server.calls == 1
    assert [type(event) for event in heard] == [AttemptEnded, CallEnded]


@pytest.mark.parametrize("asked", ["4000000000", "1734000000000", "90.5", "Fri, 31 Dec 2999 23:59:59 GMT"])
async def test_a_wait_beyond_the_cap_is_reported_and_not_waited_for(
    kind: Kind, patient: RetryPolicy, asked: str
) -> None:
    with ScriptedServer([Reply(503, headers={"Retry-After": asked})]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            reply = await caller.send("GET", server.url)
    assert len(server.requests) == 1
    assert reply.report is not None
    assert reply.report.reason is Reason.RETRY_AFTER
    assert reply.report.retry_at is not None
    assert reply.report.retry_at > datetime.now(UTC) + timedelta(seconds=80)
