"""A consumer: what it listens to, who handles it, and what becomes of what cannot be handled.

Invariant: a Consumer that exists can be run. What would lose or repeat a message is refused when it is made.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from onefold._kernel.messages import TOPIC
from onefold.errors import ConfigurationError
from onefold.policy.backoff import Backoff
from onefold.policy.ranges import require

Order: TypeAlias = Literal["none", "strict", "latest"]

DAY_S: Final = 86_400.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One consumer. Its name is its identity at the broker and in the ledger: renamed, it is another one."""

    name: str
    topics: tuple[str, ...]
    handler: Callable[..., Any]
    """`handler(message)` or `handler(message, tx)`, sync or async; with `batch` it gets a list of messages."""
    order: Order = "none"
    batch: int = 1
    """How many messages one transaction may handle."""
    attempts: int = 15
    """After so many failures a message becomes a dead letter. With the waits between them: about an hour."""
    retry_base_s: float = 1.0
    retry_cap_s: float = 600.0
    lease_s: float = 60.0
    """How long one run of the handler may take."""
    baseline_wait_s: float = 5.0
    """How long an ordered consumer waits for the beginning of a stream that it sees for the first time."""
    retention_s: float = 7 * DAY_S
    """How long the ledger remembers."""
    dead_letter_s: float = 7 * DAY_S
    """For how long a dead letter may be redriven."""
    concurrency: int = 4
    takes_tx: bool = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        checked_name(self.name)
        if type(self.topics) is not tuple or not self.topics or not all(map(TOPIC.fullmatch, self.topics)):
            raise ConfigurationError(
                f"consumer {self.name!r} has topics={self.topics!r}; give a tuple of topics like ('order.placed',)"
            )
        if self.order not in ("none", "strict", "latest"):
            raise ConfigurationError(
                f"consumer {self.name!r} has order={self.order!r}; choose 'none' (each message once, in any order), "
                "'strict' (each once, in order of version per key) or 'latest' (older versions than the last are "
                "dropped)"
            )
        if self.batch > 1 and self.order != "none":
            raise ConfigurationError(
                f"consumer {self.name!r} has batch={self.batch} and order={self.order!r}; a batch is one transaction "
                "over many keys and keeps no order: leave one of them out"
            )
        self._check_ranges()
        object.__setattr__(self, "takes_tx", _takes_tx(self.name, self.handler))
        object.__setattr__(self, "is_async", _is_async(self.handler))

    @property
    def backoff(self) -> Backoff:
        return Backoff(transient_base_s=self.retry_base_s, throttled_base_s=self.retry_cap_s, cap_s=self.retry_cap_s)

    @property
    def retry_horizon_s(self) -> float:
        """The longest that a message can be on its way to its last attempt."""
        backoff = self.backoff
        waits_s = sum(backoff.ceiling_s(attempt, throttled=False) for attempt in range(1, self.attempts))
        return waits_s + self.attempts * self.lease_s

    def check_redelivery(self, redelivery_s: float) -> None:
        """Refuse a ledger that forgets before the broker does."""
        self._check_retention("the broker may deliver a message again for", redelivery_s, "the broker's retention")

    def _check_ranges(self) -> None:
        where = f"consumer {self.name!r}: "
        require(where + "batch", self.batch, least=1, most=10_000)
        require(where + "attempts", self.attempts, least=1, most=1000)
        require(where + "lease_s", self.lease_s, least=0.1, most=DAY_S)
        require(where + "baseline_wait_s", self.baseline_wait_s, most=3600)
        require(where + "concurrency", self.concurrency, least=1, most=1000)
        require(where + "retry_cap_s", self.retry_cap_s, most=DAY_S)
        require(where + "retry_base_s", self.retry_base_s, most=self.retry_cap_s)
        require(where + "retention_s", self.retention_s, least=1, most=3650 * DAY_S)
        require(where + "dead_letter_s", self.dead_letter_s, most=3650 * DAY_S)
        self._check_retention("its dead letters may be redriven for", self.dead_letter_s, "dead_letter_s")
        self._check_retention("its attempts may take", self.retry_horizon_s, "attempts, retry_cap_s or lease_s")

    def _check_retention(self, what: str, seconds: float, setting: str) -> None:
        if self.retention_s < seconds:
            raise ConfigurationError(
                f"consumer {self.name!r} remembers for retention_s={self.retention_s:.12g} what it handled, but {what} "
                f"{seconds:.12g} s: in between a message could be handled twice. Raise retention_s, or lower {setting}"
            )


def checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"consumer name {name!r} must be letters, digits, '.', '_' and '-', at most 100")
    return name


def _takes_tx(name: str, handler: Callable[..., Any]) -> bool:
    if not callable(handler):
        raise ConfigurationError(f"the handler of consumer {name!r} is {handler!r}, which cannot be called")
    parameters = list(inspect.signature(handler).parameters.values())
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    needed = [parameter for parameter in parameters if parameter.default is inspect.Parameter.empty]
    if not 1 <= len(positional) <= 2 or any(parameter not in positional for parameter in needed):
        raise ConfigurationError(
            f"the handler of consumer {name!r} is {getattr(handler, '__qualname__', handler)}"
            f"({', '.join(map(str, parameters))}); it must take the message, or the message and tx"
        )
    return len(positional) == 2


def _is_async(handler: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
