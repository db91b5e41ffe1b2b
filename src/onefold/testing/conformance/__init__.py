"""What every driver must do: a behavioural suite over the database port, for threads and asyncio alike.

Describe a driver with `Subject` and run each of `SCENARIOS` on it with `check`, or with `check_async` (and
`check_cancellation`, which threads do not have). A driver that departs from the port raises NotConforming, which
says how.

    @pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
    def test_my_driver_conforms(scenario): check(scenario, subject)
"""

from onefold.testing.conformance import _connections, _statements, _transactions
from onefold.testing.conformance._cancellation import check_cancellation
from onefold.testing.conformance._stage import (
    NotConforming,
    Outage,
    Scenario,
    Stage,
    Subject,
    check,
    check_async,
)

__all__ = [
    "SCENARIOS",
    "NotConforming",
    "Outage",
    "Scenario",
    "Stage",
    "Subject",
    "check",
    "check_async",
    "check_cancellation",
]

SCENARIOS = tuple(
    found
    for module in (_statements, _transactions, _connections)
    for found in vars(module).values()
    if isinstance(found, Scenario)
)
