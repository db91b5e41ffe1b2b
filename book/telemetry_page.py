"""The page of telemetry: what listeners are told, and which metrics that moves."""

from __future__ import annotations

import dataclasses
import inspect
from typing import get_args

from book.tables import code, write_table
from onefold._kernel.telemetry.client_events import ClientEvent
from onefold._kernel.telemetry.consumer_events import ConsumerEvent
from onefold._kernel.telemetry.relay_events import RelayEvent
from onefold._kernel.telemetry.request_events import RequestEvent
from onefold._kernel.telemetry.saga_events import SagaEvent
from onefold._kernel.telemetry.shedding_events import SheddingEvent
from onefold._observe.instrument_table import MOVES

_KINDS = {
    "Requests": RequestEvent,
    "Relays": RelayEvent,
    "Consumers": ConsumerEvent,
    "Clients": ClientEvent,
    "Shedding": SheddingEvent,
    "Sagas": SagaEvent,
}

_HEAD = """\
# Telemetry

What a `listener` is told: `Onefold(listener=...)` and `Retrying(listener=...)` call it with one of these values, from
`onefold.telemetry`. A listener must be quick and must not fail; one that does is logged. The [metrics](../metrics.md)
of Prometheus and OpenTelemetry and the [traces](../traces.md) are made from the same events.

"""


def make_page() -> str:
    text = _HEAD + "## Metrics\n\n"
    moved = {id(each.instrument): each.instrument for moves in MOVES.values() for each in moves}
    text += write_table(
        ["metric of Prometheus", "of OpenTelemetry", "kind", "labels", "meaning"],
        (
            (code(each.prometheus_name), code(each.name), each.kind, ", ".join(map(code, each.labels)), each.help)
            for each in moved.values()
        ),
    )
    for title, union in _KINDS.items():
        text += f"## {title}\n\n"
        for kind in get_args(union):
            text += f"### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n"
            text += write_table(
                ["field", "type"], ((code(each.name), code(each.type)) for each in dataclasses.fields(kind))
            )
            metrics = dict.fromkeys(code(each.instrument.prometheus_name) for each in MOVES.get(kind, ()))
            if metrics:
                text += f"Moves {', '.join(metrics)}.\n\n"
    return text
