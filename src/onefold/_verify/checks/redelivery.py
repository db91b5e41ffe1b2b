"""A consumer handles a message once, however often it is delivered.

The prober knows no broker: a command publishes a message with a given id, another counts the effects. After the
duplicates a message with an id of its own follows. When that one has been handled, a consumer that takes messages in
their order has met the duplicates before it; for those that work on several at once there is a pause on top.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from onefold._verify.findings import NotApplicable, Violation
from onefold._verify.probing import Probe

_POLL_S: Final = 0.5
_QUIET_S: Final = 1.0


def check_redelivery(probe: Probe) -> str:
    publish, count = probe.around.publish, probe.around.count
    if publish is None or count is None:
        raise NotApplicable("give --publish with a command that publishes a message of a given id, and --count")
    deliveries = probe.target.deliveries
    repeated, last = probe.around.new_key(), probe.around.new_key()
    before = count()
    publish(repeated)
    _wait_for(probe, count, before + 1, "a message was published once and not handled")
    for _ in range(deliveries - 1):
        publish(repeated)
    publish(last)
    _wait_for(probe, count, before + 2, "a message with another id, published after the duplicates, was not handled")
    probe.around.wait(_QUIET_S)
    handled = count() - before
    if handled != 2:
        raise Violation(
            f"{deliveries} deliveries of one id and one of another changed the count by {handled}, and not by 2: a "
            "message was handled more than once"
        )
    return f"{deliveries} deliveries of one id changed the count by 1"


def _wait_for(probe: Probe, count: Callable[[], int], expected: int, otherwise: str) -> None:
    waited_s = 0.0
    while count() < expected:
        if waited_s >= probe.target.settle_s:
            raise Violation(f"{otherwise} within {waited_s:g} s: does the consumer run?")
        probe.around.wait(_POLL_S)
        waited_s += _POLL_S
