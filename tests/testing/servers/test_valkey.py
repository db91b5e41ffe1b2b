"""A private Valkey keeps what it has answered."""

from __future__ import annotations

import redis

from onefold.testing.servers import PrivateValkey


def test_what_was_answered_survives_a_kill() -> None:
    with PrivateValkey() as server:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            ids = [client.xadd("payments", {"number": str(number)}) for number in range(100)]
            assert client.xgroup_create("payments", "billing", id="0")
            server.kill()
        server.restart()
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            found = client.xrange("payments")
            assert found == [(key, {"number": str(number)}) for number, key in enumerate(ids)]
            [[_, delivered]] = client.xreadgroup("billing", "one", {"payments": ">"})
            assert len(delivered) == 100


def test_the_fixture_serves_and_syncs_every_write(valkey: PrivateValkey) -> None:
    with redis.Redis.from_url(valkey.url, decode_responses=True) as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
