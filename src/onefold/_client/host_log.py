"""What an operator must know of a host that fails, in the log `onefold.client`: once for each change."""

from __future__ import annotations

import logging

from onefold._kernel.log_context import log_extra
from onefold._policy.attempts import HostHealth
from onefold._policy.breaker import State
from onefold._policy.retry import RetryAfter

_log = logging.getLogger("onefold.client")

#: A host that fails now and then is not logged with each failure: it works again when no call failed for so long.
CALM_S = 10.0


def log_retry(host: HostHealth, failure: str, decision: RetryAfter, now: float) -> None:
    """An attempt failed and another follows. Logged for the first of a run of troubled calls."""
    host.failed_at = now
    if not host.troubled:
        host.troubled = True
        _log.warning(
            "%s: an attempt failed (%s), and is retried in %.2f s; further retries are not logged until calls succeed "
            "again", host.name, failure, decision.wait_s, extra=log_extra("client.retrying"),
        )  # fmt: skip


def log_breaker(host: HostHealth, now: float) -> State | None:
    """The breaker's state, if it is another one than before; that is logged."""
    level = logging.WARNING if host.is_closed else logging.INFO  # where probes failed, it was logged already
    state = host.take_state_change(now)
    match state:
        case "open":
            host.troubled = True
            host.failed_at = now
            _log.log(
                level, "%s: nearly all calls fail; its breaker is open, calls are refused for a while", host.name,
                extra=log_extra("client.breaker_open"),
            )  # fmt: skip
        case "half-open":
            _log.info("%s: its breaker is half-open; a few calls try whether it works again", host.name)
        case "closed":
            _log.info("%s: its breaker is closed; calls to it are made again", host.name)
        case None:
            pass
    return state


def log_layers(host: HostHealth) -> None:
    """A layer below retries too: logged once for each host."""
    if not host.layered:
        host.layered = True
        _log.warning(
            "%s: its calls are retried by two layers, and attempts would multiply: what the inner layer has given up, "
            "the outer one does not try again. Keep one of the two, the one next to the network",
            host.name,
        )


def log_success(host: HostHealth, now: float) -> None:
    """A call succeeded at its first attempt after others had to be retried or refused."""
    # While it is not closed, this was a probe: the state that the breaker goes to is not logged yet.
    if not host.is_closed or now - host.failed_at < CALM_S:
        return
    host.troubled = False
    _log.info("%s: calls succeed at once again", host.name, extra=log_extra("client.recovered"))
