"""The page of telemetry: what listeners are told, and which metrics that moves."""

from __future__ import annotations

import dataclasses
import inspect
from itertools import groupby
from typing import get_args

from book.tables import code, write_table
from onefold._kernel.telemetry.every_event import Event
from onefold._observe.instrument_table import MOVES

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
    for module, kinds in groupby(sorted(get_args(Event), key=_module_of), key=_module_of):
        text += f"## {module.removesuffix('_events').replace('_', ' ').capitalize()}\n\n"
        for kind in kinds:
            text += f"### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n"
            text += write_table(
                ["field", "type"], ((code(each.name), code(each.type)) for each in dataclasses.fields(kind))
            )
            metrics = dict.fromkeys(code(each.instrument.prometheus_name) for each in MOVES.get(kind, ()))
            if metrics:
                text += f"Moves {', '.join(metrics)}.\n\n"
    return text


def _module_of(kind: type) -> str:
    return kind.__module__.rpartition(".")[2]
