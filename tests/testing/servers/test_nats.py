"""A private NATS keeps what its JetStream has acknowledged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from nats.js import JetStreamContext

from onefold.testing.servers import PrivateNats


@asynccontextmanager
async def jetstream(server: PrivateNats) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url, allow_reconnect=False)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def test_what_was_acknowledged_survives_a_kill_and_is_still_known_as_a_duplicate() -> None:
    with PrivateNats() as server:
        async with jetstream(server) as stream:
            await stream.add_stream(name="payments", subjects=["payments.*"])
            for number in range(100):
                answer = await stream.publish("payments.made", b"%d" % number, headers={"Nats-Msg-Id": f"id-{number}"})
                assert not answer.duplicate
            server.kill()
        server.restart()
        async with jetstream(server) as stream:
            assert (await stream.stream_info("payments")).state.messages == 100
            assert (await stream.get_msg("payments", 100)).data == b"99"
            again = await stream.publish("payments.made", b"99", headers={"Nats-Msg-Id": "id-99"})
            assert again.duplicate


async def test_the_fixture_serves_streams(nats: PrivateNats) -> None:
    async with jetstream(nats) as stream:
        await stream.add_stream(name="fixture", subjects=["fixture"])
        assert (await stream.publish("fixture", b"")).seq == 1
