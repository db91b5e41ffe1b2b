"""The settings that the apps pass on to workers, with their types."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypedDict

from onefold._kernel.effects import Isolation
from onefold._kernel.messages import Delivery
from onefold._kernel.typos import refuse_unknown
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._inbox.consumer import Consumer


class RelaySettings(TypedDict, total=False):
    """How a relay works. See `Relay`."""

    lease_s: float
    batch_max: int
    keep_published_s: float
    poll_s_max: float
    attempts_max: int


class ConsumerSettings(TypedDict, total=False):
    """How a consumer works. See `Consumer`."""

    batch: int
    attempts: int
    retry_base_s: float
    retry_cap_s: float
    dead_letter_on: tuple[type[Exception], ...]
    lease_s: float
    timeout_s: float | None
    baseline_wait_s: float
    retention_s: float
    dead_letter_s: float
    concurrency: int
    isolation: Isolation | None
    id_of: Callable[[Delivery], str | None] | None


def check_relay_settings(settings: Collection[str]) -> None:
    """Refuse a name that is not a setting of a relay, when it is passed."""
    refuse_unknown(settings, RelaySettings.__annotations__, "a relay")


def select_consumers(consumers: Sequence[Consumer], only: Collection[str]) -> list[Consumer]:
    """The consumers named in `only`; all, if it is empty."""
    if isinstance(only, str):
        raise ConfigurationError(f"only={only!r} is one text; write a list of names: [{only!r}]")
    by_name = {consumer.name: consumer for consumer in consumers}
    unknown = sorted(set(only) - by_name.keys())
    if unknown:
        raise ConfigurationError(f"there is no consumer {unknown[0]!r}; there are {sorted(by_name)}")
    if not by_name:
        raise ConfigurationError("there is no consumer to run: mark a handler with @once.consumer('name', topic='...')")
    return [consumer for consumer in consumers if not only or consumer.name in only]
