"""What may differ from host to host, and from call to call, with every client."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from onefold import Retrying, RetryPolicy
from onefold.clients import options
from onefold.errors import ConfigurationError
from onefold.testing.scripted_server import Reply, ScriptedServer
from tests.client.http.clients import Kind, only


async def test_a_block_says_how_often_its_requests_are_tried(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            with options(attempts_max=3, deadline_s=20):
                await caller.send("GET", server.url)
                with options(attempts_max=1):
                    await caller.send("GET", server.url)
            await caller.send("GET", server.url)
    assert len(server.requests) == 3 + 1 + 4
    told = [int(request.headers.get("request-timeout-ms", 0)) for request in server.requests]
    assert 0 < told[0] <= 10_000, "half of the block's deadline"
    assert 0 < told[3] <= 20_000, "the inner block has the outer one's"
    assert told[4] == 0


async def test_hosts_may_have_policies_of_their_own(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503)]) as one, ScriptedServer([Reply(503)]) as other:
        own = {one.url.partition("//")[2]: RetryPolicy(attempts_max=1)}
        async with kind.opened(Retrying(patient, hosts=own)) as caller:
            await caller.send("GET", one.url)
            await caller.send("GET", other.url)
    assert (len(one.requests), len(other.requests)) == (1, 4)


def test_a_policy_may_be_named_without_the_port() -> None:
    retrying = Retrying(hosts={"Ledger.test": RetryPolicy(attempts_max=1)})
    found = {
        host: retrying._hosts.of(host, 0.0).policy.attempts_max for host in ("ledger.test:8000", "ledger.test", "x")
    }
    assert found == {"ledger.test:8000": 1, "ledger.test": 1, "x": 4}


@pytest.mark.parametrize(
    ("hosts", "said"),
    [({"https://x.test/": RetryPolicy()}, "is not a host"), ({"x.test": 3}, "must be a RetryPolicy")],
    ids=["an address", "no policy"],
)
def test_what_is_no_host_or_no_policy_is_refused(hosts: dict[str, RetryPolicy], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Retrying(hosts=hosts)


#: What a policy would refuse: it would fail in the middle of a call, or with the first attempt that fails.
WRONG: list[dict[str, Any]] = [
    {"attempts_max": 0}, {"attempts_max": 101}, {"attempts_max": 1.5}, {"attempts_max": "3"}, {"deadline_s": -1},
    {"deadline_s": inf}, {"deadline_s": nan}, {"attempt_s": -0.5}, {"attempt_s": inf}, {"hedge_s": inf},
    {"stream": "no"},
]  # fmt: skip


@pytest.mark.parametrize("said", WRONG, ids=str)
def test_options_out_of_range_are_refused_by_name(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{next(iter(said))}="), options(**said):
        pass


@only(lambda kind: kind.name == "httpx-async")
@pytest.mark.parametrize("said", WRONG, ids=str)
async def test_so_are_those_of_a_request_before_it_is_sent(
    kind: Kind, patient: RetryPolicy, said: dict[str, Any]
) -> None:
    with ScriptedServer([Reply(503)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            with pytest.raises(ConfigurationError, match=rf"^GET http://127\.0\.0\.1:\d+: {next(iter(said))}="):
                await caller.send("GET", server.url, options=said)
    assert server.requests == []
