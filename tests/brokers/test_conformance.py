"""Every adapter keeps every promise of the broker port that applies to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from onefold.testing.conformance.brokers import OUTAGES, SCENARIOS, BrokerScenario, check
from onefold.testing.servers import PrivateServer
from tests.brokers.registry import BROKERS, Entry
from tests.support.patience import PATIENCE_S
from tests.testing.servers.missing import unless_missing

Mortal = Callable[[str], PrivateServer]


def cases(scenarios: tuple[BrokerScenario, ...], entries: dict[str, Entry]) -> list[object]:
    return [
        pytest.param(name, scenario, id=f"{name}-{scenario}")
        for name, entry in entries.items()
        for scenario in scenarios
        if str(scenario) not in entry.leaves_out
    ]


@pytest.fixture(scope="session")
def mortal() -> Iterator[Mortal]:
    """Servers to be killed, one of a kind, for this worker. Whoever kills one restarts it."""
    started: dict[str, PrivateServer] = {}
    with ExitStack() as exits:

        def of(name: str) -> PrivateServer:
            kind = BROKERS[name].mortal
            assert kind is not None
            if name not in started:
                server = kind()
                with unless_missing(type(server)):
                    started[name] = exits.enter_context(server)
            return started[name]

        yield of


@pytest.mark.parametrize(("name", "scenario"), cases(SCENARIOS, BROKERS))
async def test_a_broker_keeps_its_promise(name: str, scenario: BrokerScenario, request: pytest.FixtureRequest) -> None:
    entry = BROKERS[name]
    server = request.getfixturevalue(entry.server) if entry.server else None
    async with entry.subject(server) as subject:
        assert scenario.applies(subject), f"name {scenario} in `leaves_out` of {name}, or let it apply"
        await check(scenario, replace(subject, patience_s=PATIENCE_S))


@pytest.mark.parametrize(
    ("name", "scenario"), cases(OUTAGES, {name: entry for name, entry in BROKERS.items() if entry.mortal})
)
async def test_a_broker_survives_its_server(name: str, scenario: BrokerScenario, mortal: Mortal) -> None:
    server = mortal(name)
    async with BROKERS[name].subject(server) as subject:
        await check(scenario, replace(subject, outage=server, outage_s=PATIENCE_S, patience_s=PATIENCE_S))


@pytest.mark.parametrize("name", BROKERS)
def test_what_a_broker_leaves_out_is_in_the_suite(name: str) -> None:
    assert BROKERS[name].leaves_out <= {str(scenario) for scenario in (*SCENARIOS, *OUTAGES)}
