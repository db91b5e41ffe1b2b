"""Which of its two ways a message takes to NATS, and what differs between them."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from nats.aio.client import Client
from nats.errors import BadSubjectError

from onefold._kernel.messages import Message
from onefold._kernel.public_drivers import PUBLIC_ONLY
from onefold.brokers.nats import NatsBroker, _fast_publish, _publish
from onefold.errors import BrokerUnavailable, MessageRefused
from onefold.testing.fault_proxy import FaultProxy
from onefold.testing.servers import PrivateNats
from tests.support.patience import PATIENCE_S


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PUBLIC_ONLY, raising=False)


def test_the_version_that_is_installed_publishes_the_fast_way() -> None:
    assert _fast_publish.works_with(Client())


def test_a_version_that_was_not_tested_publishes_by_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fast_publish, "TESTED", ((2, 1),))
    assert not _fast_publish.works_with(Client())


@pytest.mark.parametrize("name", ["_send_command", "_flush_pending"])
def test_a_client_without_a_private_name_publishes_by_public_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delattr(Client, name)
    assert not _fast_publish.works_with(Client())


def test_the_environment_has_messages_published_by_public_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PUBLIC_ONLY, "1")
    assert not _fast_publish.works_with(Client())


async def test_by_public_names_no_private_one_is_used(nats: PrivateNats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PUBLIC_ONLY, "1")
    monkeypatch.setattr(_fast_publish, "send", None)
    broker = NatsBroker(nats.url, stream=f"s{uuid.uuid4().hex}", confirm_s=PATIENCE_S)
    await broker.open()
    try:
        assert await broker.publish([Message(id="1", source="shop", topic="orders", data=b"{}")]) == [None]
    finally:
        await broker.close()


class Choosy(Client):
    """A client that refuses what onefold would have sent, as 2.16 does for some names of headers."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        if subject.endswith(".odd"):
            raise BadSubjectError


async def test_what_the_client_itself_refuses_is_refused_alone() -> None:
    batch = [
        _publish.encode(Message(id="1", source="shop", topic=topic, data=b""), number, "shop", "inbox", 1_000)
        for number, topic in enumerate(("even", "odd", "even"))
    ]
    [(number, refused)] = await _publish.send(Choosy(), batch)
    assert number == 1
    assert isinstance(refused, MessageRefused)
    assert "shop.odd" in str(refused)


@pytest.mark.parametrize("public", [False, True], ids=["fast", "public"])
async def test_a_connection_that_takes_nothing_holds_up_no_publish_and_no_close(
    nats: PrivateNats, monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    """Past two megabytes that wait, the client would flush by itself, and swallow what cancels it meanwhile."""
    monkeypatch.setenv(PUBLIC_ONLY, str(int(public)))
    monkeypatch.setattr("onefold.brokers.nats._connection.CLOSE_S", 0.2)
    with FaultProxy("127.0.0.1", nats.port) as proxy:
        broker = NatsBroker(proxy.dsn(nats.url), stream=f"s{uuid.uuid4().hex}", confirm_s=0.5)
        await broker.open()
        proxy.switch("black_hole")
        large = b"x" * 1_000_000
        messages = [Message(id=f"{n}", source="shop", topic="orders", data=large) for n in range(30)]
        async with asyncio.timeout(PATIENCE_S):
            answers = await broker.publish(messages)
            await broker.close()
        assert [type(answer) for answer in answers] == [BrokerUnavailable] * 30
