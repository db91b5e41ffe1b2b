"""Logs as lines of JSON, and the fields of a line for formats of the application's own.

A line has what its record says, the fields that onefold gave it, those of the request or message it was written at, and
the ids of the span that is active, where OpenTelemetry is used.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from onefold._kernel.log_context import ATTRIBUTE, LogField, fields_here

#: The fields that a line may have beside its text.
FIELDS: Final = (
    "event", "operation", "key_hash", "correlation_id", "consumer", "topic", "message_id", "attempt", "work",
    "trace_id", "span_id",
)  # fmt: skip


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: `handler.setFormatter(JsonFormatter())`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class LogFields(logging.Filter):
    """Lets all records through, and gives them the fields as attributes, "" where there is none: a handler that has
    this filter can use `%(correlation_id)s` in its format."""

    def filter(self, record: logging.LogRecord) -> bool:
        found = _fields_of(record)
        for name in FIELDS:
            setattr(record, name, found.get(name, ""))
        return True


def log_as_json(level: int | str = logging.INFO) -> None:
    """Write what this process logs, from this level on, to stderr as lines of JSON. Handlers that the root logger has
    are taken off."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _fields_of(record: logging.LogRecord) -> dict[str, LogField]:
    given = getattr(record, ATTRIBUTE, None)
    return {**fields_here(), **(given if isinstance(given, Mapping) else {}), **_span_here()}


def _span_here() -> dict[str, LogField]:
    """The ids of the active span. OpenTelemetry is not imported for it: where it is used, it is there."""
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return {}
    context = trace.get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}
