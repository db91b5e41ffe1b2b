"""psycopg: a batch in libpq's pipeline mode, one round trip with the values beside the text (see `bound.py`)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import psycopg
from psycopg import generators
from psycopg.pq import ExecStatus, Format

from onefold._kernel.effects import Boundary, Statement, Step, Value
from onefold.db._bound_batches import encoded
from onefold.db._postgres import crossing, placed

DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)


def begin_of(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> str:
    """As psycopg would begin: whoever made the connection may have set its level."""
    level = connection.isolation_level
    return "BEGIN" if level is None else f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}"


def send_bound(pgconn: Any, steps: Sequence[Step], begin: str, schema: str | None) -> Generator[Any, Any, Any]:
    """Send the steps with their values beside the text: see `bound.py`. The result of the last, or of the first that
    failed."""
    queries = []
    for step in steps:
        values: tuple[Value, ...] = ()
        if isinstance(step, Statement):
            sql, values = placed(step.sql, schema), step.values
        else:
            sql = begin if step is Boundary.BEGIN_AS_CHOSEN else crossing(step)
        formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
        queries.append((sql.encode(), [encoded(value) for value in values], formats))
    pgconn.enter_pipeline_mode()
    for text, data, formats in queries:
        pgconn.send_query_params(text, data, param_formats=formats)
    pgconn.pipeline_sync()
    yield from generators.send(pgconn)
    found = None
    while (result := (yield from generators.fetch_many(pgconn))[-1]).status != ExecStatus.PIPELINE_SYNC:
        if found is None or found.status in DONE:
            found = result
    pgconn.exit_pipeline_mode()
    return found
