"""How commands speak: results on stdout, everything else on stderr, and never a password or a control character."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import Final, TextIO

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from onefold._kernel.readable import harmless
from onefold._kernel.telemetry.consumer_events import FailedMessagesMeasured
from onefold._kernel.telemetry.every_event import Event
from onefold._kernel.telemetry.relay_events import OutboxMeasured
from onefold._observe.json_logs import JsonFormatter

_log = logging.getLogger("onefold.command")

#: Of a table that no terminal shows: a program may want to read it, and no column is to be cut.
_WIDE = 400


class LogFormat(StrEnum):
    """How a command that stays writes to stderr."""

    TEXT = "text"
    JSON = "json"


LOG_FORMAT: Final = typer.Option("--log-format", help="What goes to stderr: lines of text, or of JSON.")


class _Stderr(logging.StreamHandler[TextIO]):
    """What onefold logs, as its commands speak."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("onefold: %(message)s"))


class _JsonStderr(logging.StreamHandler[TextIO]):
    """What the process logs, as JSON; the application's own lines, too."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())


def say(text: str) -> None:
    """A line about how things go."""
    if any(isinstance(handler, _JsonStderr) for handler in logging.getLogger().handlers):
        _log.info("%s", text)
    else:
        typer.echo(f"onefold: {text}", err=True)


def answer(value: object) -> None:
    """The result, as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_done(done: str, what: str, hint: str = "", *, as_json: bool) -> None:
    """What was done to what: a line for people, or {"done": "what"}."""
    if as_json:
        answer({done.replace(" ", "_"): what})
    else:
        typer.echo(f"{done}: {what}{hint}")


def tell_as_json(event: Event) -> None:
    """What a worker tells, as a line of JSON; not what waits, which is told every few seconds."""
    if isinstance(event, OutboxMeasured | FailedMessagesMeasured):
        return
    typer.echo(json.dumps({"event": type(event).__name__, **asdict(event)}, default=str))


def log_to_stderr(log_format: LogFormat = LogFormat.TEXT) -> None:
    """Show what workers log (that they pause, that they go on), unless the application does that itself. Called again
    after an application was imported: what it logs by itself is not to be shown twice. Asked for JSON, everything that
    the process logs is written as that, whatever the application has set up."""
    log = logging.getLogger("onefold")
    if log_format is LogFormat.JSON:
        logging.basicConfig(level=logging.WARNING, handlers=[_JsonStderr()], force=True)
        log.setLevel(logging.INFO)
        return
    ours = [handler for handler in log.handlers if isinstance(handler, _Stderr)]
    for handler in ours:
        log.removeHandler(handler)
    if log.hasHandlers():
        if ours:
            log.setLevel(logging.NOTSET)
        return
    log.addHandler(_Stderr())
    log.setLevel(logging.INFO)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table."""
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text("-" if cell is None else harmless(str(cell))) for cell in row))
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


@contextmanager
def show_progress(text: str) -> Iterator[None]:
    """What is being done, and for how long by now: on a terminal, on stderr, and gone at the end."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(text, total=None)
        yield
