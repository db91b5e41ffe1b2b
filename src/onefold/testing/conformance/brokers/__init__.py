"""What every broker must do: a behavioural suite over the broker port.

Describe a broker with `BrokerSubject` and run each of `SCENARIOS` that applies to it with `check`; `OUTAGES` kill and
restart its server. A broker that departs from the port raises NotConforming, which says how.

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
    async def test_my_broker_conforms(scenario): await check(scenario, subject)
"""

from typing import Final

from onefold.testing.conformance._stage import NotConforming, Outage
from onefold.testing.conformance.brokers import _outages, _patterns, _publishing, _sharing, _subscriptions
from onefold.testing.conformance.brokers._broker_stage import BrokerScenario, BrokerStage, BrokerSubject, check, ids

__all__ = [
    "OUTAGES",
    "SCENARIOS",
    "BrokerScenario",
    "BrokerStage",
    "BrokerSubject",
    "NotConforming",
    "Outage",
    "check",
    "ids",
]

SCENARIOS: Final = tuple(
    found
    for module in (_publishing, _sharing, _subscriptions, _patterns)
    for found in vars(module).values()
    if isinstance(found, BrokerScenario)
)

OUTAGES: Final = tuple(found for found in vars(_outages).values() if isinstance(found, BrokerScenario))
