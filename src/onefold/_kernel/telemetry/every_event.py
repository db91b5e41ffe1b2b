"""All that a listener can be handed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onefold._kernel.telemetry.cache_events import CacheEvent
from onefold._kernel.telemetry.client_events import ClientEvent
from onefold._kernel.telemetry.consumer_events import ConsumerEvent
from onefold._kernel.telemetry.relay_events import RelayEvent
from onefold._kernel.telemetry.request_events import RequestEvent
from onefold._kernel.telemetry.saga_events import SagaEvent
from onefold._kernel.telemetry.shedding_events import SheddingEvent

Event: TypeAlias = RequestEvent | CacheEvent | RelayEvent | ConsumerEvent | ClientEvent | SheddingEvent | SagaEvent
Listener: TypeAlias = Callable[[Event], None]
