"""A consumer: its topics, its handler, and the handling of messages that fail.

Invariant: a Consumer that exists can be run. What would lose or repeat a message is refused when it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from onefold._inbox.handler_signature import PayloadOf, Signature, kind_of, no_payloads, read_handler
from onefold._inbox.permanent_failures import check_classes
from onefold._kernel.effects import Isolation, check_isolation
from onefold._kernel.messages import Delivery
from onefold._kernel.topics import find_fault, matches_any
from onefold._policy.backoff import Backoff
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError

Order: TypeAlias = Literal["none", "strict", "latest"]

DAY_S: Final = 86_400.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """One consumer. Its name is its identity at the broker and in the ledger: renamed, it is another one."""

    name: str
    topics: tuple[str, ...]
    """Topics, and patterns of topics (`order.*`, `order.>`). What several of them stand for is handled once."""
    handler: Callable[..., Any]
    """`handler(message)`, `handler(message, tx)` and more, as its parameters are annotated: see `handler_signature.py`.
    Sync or async; with `batch` it gets a list of messages."""
    order: Order = "none"
    batch: int = 1
    """How many messages one transaction may handle."""
    attempts: int = 15
    """After so many failures a message becomes a dead letter. With the waits between them: half an hour to an hour."""
    retry_base_s: float = 1.0
    retry_cap_s: float = 600.0
    dead_letter_on: tuple[type[Exception], ...] = ()
    """Exceptions that are not worth another attempt: a message whose handler raises one is a dead letter at once."""
    lease_s: float = 60.0
    """How long one run of the handler's transaction may take. In recorded steps: how long a process that was killed or
    stopped keeps others from going on; it is renewed for as long as the handler runs."""
    timeout_s: float | None = None
    """How long one call of the handler may take; then it is cancelled, and its message has failed. A plain `def` cannot
    be cancelled: its message fails all the same, its transaction is ended, and its thread is left behind. None: as long
    as `lease_s`, and never longer; in recorded steps as long as it takes."""
    baseline_wait_s: float = 5.0
    """How long an ordered consumer waits for the beginning of a stream that it sees for the first time."""
    retention_s: float = 7 * DAY_S
    """How long the ledger remembers."""
    dead_letter_s: float = 7 * DAY_S
    """For how long a dead letter may be redriven."""
    concurrency: int = 4
    isolation: Isolation | None = None
    """The level of the handler's transaction; None keeps what the engine or the database has by default."""
    id_of: Callable[[Delivery], str | None] | None = None
    """Where a message's id is, for producers that set none, or a fresh one for each retry: `lambda delivery:
    delivery.json()["order"]`. None: its CloudEvents attribute `id`. A message that has no envelope is handled under
    the id that is returned; its topic, source and key are then those of the broker."""
    payload_of: PayloadOf = no_payloads
    """How a message's data is read, where a parameter of the handler is annotated with a type of data."""
    signature: Signature = field(init=False)
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        check_name(self.name)
        self._check_topics()
        if self.order not in ("none", "strict", "latest"):
            raise ConfigurationError(
                f"consumer {self.name!r} has order={self.order!r}; choose 'none' (each message once, in any order), "
                "'strict' (each once, in order of version per key) or 'latest' (older versions than the last are "
                "dropped)"
            )
        require(f"consumer {self.name!r}: batch", self.batch, least=1, most=10_000, whole=True)
        if self.batch > 1 and self.order != "none":
            raise ConfigurationError(
                f"consumer {self.name!r} has batch={self.batch} and order={self.order!r}; a batch is one transaction "
                "over many keys and keeps no order: leave one of them out"
            )
        check_isolation(self.isolation)
        object.__setattr__(self, "dead_letter_on", check_classes(self.name, self.dead_letter_on))
        id_of: object = self.id_of
        if id_of is not None and (not callable(id_of) or kind_of(id_of) != "plain"):
            raise ConfigurationError(
                f"consumer {self.name!r} has id_of={id_of!r}; give a plain function of the delivery that returns the "
                "message's id, such as lambda delivery: delivery.json()['order']"
            )
        self._check_ranges()
        signature = read_handler(self.name, self.handler, batch=self.batch, payload_of=self.payload_of)
        object.__setattr__(self, "signature", signature)
        object.__setattr__(self, "is_async", signature.kind == "async")
        if signature.works_in_steps:
            self._check_steps()
        elif self.limit_s is not None:
            require(f"consumer {self.name!r}: timeout_s", self.limit_s, least=0.01, most=self.lease_s)

    def wants(self, topic: str) -> bool:
        """Whether messages of this topic are for it."""
        return matches_any(self.topics, topic)

    @property
    def backoff(self) -> Backoff:
        return Backoff(transient_base_s=self.retry_base_s, throttled_base_s=self.retry_cap_s, cap_s=self.retry_cap_s)

    @property
    def limit_s(self) -> float | None:
        """How long one call of the handler may take."""
        if self.timeout_s is None and self.signature.works_in_steps:
            return None
        return self.lease_s if self.timeout_s is None else self.timeout_s

    @property
    def retry_horizon_s(self) -> float:
        """The longest that a message can be on its way to its last attempt."""
        backoff = self.backoff
        waits_s = sum(backoff.ceiling_s(attempt, throttled=False) for attempt in range(1, self.attempts))
        return waits_s + self.attempts * self.lease_s

    def check_redelivery(self, redelivery_s: float) -> None:
        """Refuse a ledger that forgets before the broker does."""
        self._check_retention("the broker may deliver a message again for", redelivery_s, "the broker's retention")

    def _check_topics(self) -> None:
        given = self.topics if type(self.topics) is tuple and self.topics else (None,)
        for fault, topic in ((find_fault(topic), topic) for topic in given):
            if fault is not None:
                named = f"topics={self.topics!r}" if topic is None else f"the topic {topic!r}"
                raise ConfigurationError(f"consumer {self.name!r} has {named}: {fault}")

    def _check_steps(self) -> None:
        where = f"consumer {self.name!r}: its handler works in recorded steps, and "
        if self.signature.takes_transaction:
            raise ConfigurationError(
                f"{where}takes the transaction of the message, or a session in it: there is none. Take it out; the "
                "functions of work.phase(...) and work.finish(...) get their own transaction, and tx.session() in it"
            )
        if self.batch > 1:
            raise ConfigurationError(f"{where}has batch={self.batch}: each message is a work of its own. Leave it out")
        if self.order == "latest":
            raise ConfigurationError(
                f"{where}has order='latest': a later version could be handled between two steps of an earlier one, "
                "whose last steps would then undo it. Choose 'strict', where each version waits for the one before, "
                "or 'none'"
            )
        if self.timeout_s is not None:
            require(f"consumer {self.name!r}: timeout_s", self.timeout_s, least=0.01, most=DAY_S)

    def _check_ranges(self) -> None:
        where = f"consumer {self.name!r}: "
        require(where + "attempts", self.attempts, least=1, most=1000, whole=True)
        require(where + "lease_s", self.lease_s, least=0.1, most=DAY_S)
        require(where + "baseline_wait_s", self.baseline_wait_s, most=3600)
        require(where + "concurrency", self.concurrency, least=1, most=1000, whole=True)
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


def check_name(name: str) -> str:
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"consumer name {name!r} must be letters, digits, '.', '_' and '-', at most 100")
    return name
