"""Spans as a test wants them: what an exporter of OpenTelemetry's SDK has got, here or in another process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from onefold._observe.otel_traces import OtelTraces
from onefold.otel import otel_traces


@dataclass(frozen=True)
class SeenSpan:
    """A span that has ended."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str | None
    links: tuple[tuple[str, str], ...]
    """The traces and spans it is linked to."""
    failed: bool
    attributes: Mapping[str, Any] = field(hash=False)
    process: str = ""
    began: int = 0

    def __getitem__(self, name: str) -> Any:
        return self.attributes.get(name)

    @property
    def context(self) -> tuple[str, str]:
        return self.trace, self.id


class FileExporter(InMemorySpanExporter):
    """The SDK's own, which also writes each span down at once: a process that is killed has told what had ended."""

    def __init__(self, path: Path, process: str) -> None:
        super().__init__()
        self._path = path
        self._process = process

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            for span in spans:
                file.write(json.dumps(_write(span, self._process)) + "\n")
        return super().export(spans)


class Traced:
    """A provider of OpenTelemetry, and what it has exported."""

    def __init__(self, exporter: InMemorySpanExporter | None = None, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter() if exporter is None else exporter
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def listener(self) -> OtelTraces:
        """As an application gives it."""
        return otel_traces(self.provider)

    def spans(self, **attributes: Any) -> list[SeenSpan]:
        """Those with these attributes (dots are written as two underscores), in the order of their beginnings."""
        return select(map(_read, (_write(span, "") for span in self.exporter.get_finished_spans())), **attributes)

    def named(self, name: str) -> list[SeenSpan]:
        return [span for span in self.spans() if span.name == name]


def read_spans(path: Path) -> list[SeenSpan]:
    """What the processes that share this file have exported."""
    return select(_read(json.loads(line)) for line in path.read_text().splitlines())


def select(spans: Iterable[SeenSpan], **attributes: Any) -> list[SeenSpan]:
    wanted = {name.replace("__", "."): value for name, value in attributes.items()}
    found = [span for span in spans if all(span[name] == value for name, value in wanted.items())]
    return sorted(found, key=lambda span: span.began)


def _write(span: ReadableSpan, process: str) -> dict[str, Any]:
    context = span.get_span_context()
    assert context is not None
    return {
        "name": span.name,
        "kind": span.kind.name.lower(),
        "trace": f"{context.trace_id:032x}",
        "id": f"{context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [(f"{each.context.trace_id:032x}", f"{each.context.span_id:016x}") for each in span.links],
        "failed": span.status.status_code.name == "ERROR",
        "attributes": dict(span.attributes or {}),
        "process": process,
        "began": span.start_time,
    }


def _read(written: dict[str, Any]) -> SeenSpan:
    return SeenSpan(**{**written, "links": tuple((trace, span) for trace, span in written["links"])})
