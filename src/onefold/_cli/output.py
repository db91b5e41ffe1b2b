"""Output of commands: results on stdout, everything else on stderr, and never a password or a control character."""

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

#: Width of a table that goes to a file or a pipe: a program may read it, so no column is cut.
_WIDE = 400


class LogFormat(StrEnum):
    """How a command that stays writes to stderr."""

    TEXT = "text"
    JSON = "json"


LOG_FORMAT: Final = typer.Option("--log-format", help="What goes to stderr: lines of text, or of JSON.")


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes onefold's log lines like other output of its commands: `onefold: ...`."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("onefold: %(message)s"))


class _JsonStderr(logging.StreamHandler[TextIO]):
    """Writes all log lines of the process as JSON, the application's own, too."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())


def echo_stderr(text: str) -> None:
    """Write a line about progress to stderr: as text, or through the log where that is JSON."""
    if any(isinstance(handler, _JsonStderr) for handler in logging.getLogger().handlers):
        _log.info("%s", text)
    else:
        typer.echo(f"onefold: {text}", err=True)


def print_json(value: object) -> None:
    """Print the result of a command as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_done(outcome: str, name: str, hint: str = "", *, as_json: bool) -> None:
    """Print what was done to which name: `paused: shipping`, or {"paused": "shipping"}."""
    if as_json:
        print_json({outcome.replace(" ", "_"): name})
    else:
        typer.echo(f"{outcome}: {name}{hint}")


def print_event(event: Event) -> None:
    """Print a worker's event as a line of JSON; not the backlog measurements, which come every few seconds."""
    if isinstance(event, OutboxMeasured | FailedMessagesMeasured):
        return
    typer.echo(json.dumps({"event": type(event).__name__, **asdict(event)}, default=str))


def log_to_stderr(log_format: LogFormat = LogFormat.TEXT) -> None:
    """Write the log of workers (paused, resumed) to stderr, unless the application has a handler of its own. Call it
    again after the application is imported, so that no line is written twice. With JSON all log lines of the process
    are JSON, whatever the application has set up."""
    log = logging.getLogger("onefold")
    if log_format is LogFormat.JSON:
        logging.basicConfig(level=logging.WARNING, handlers=[_JsonStderr()], force=True)
        log.setLevel(logging.INFO)
        return
    own_handlers = [handler for handler in log.handlers if isinstance(handler, _Stderr)]
    for handler in own_handlers:
        log.removeHandler(handler)
    if log.hasHandlers():
        if own_handlers:
            log.setLevel(logging.NOTSET)
        return
    log.addHandler(_Stderr())
    log.setLevel(logging.INFO)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table."""
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text("-" if cell is None else harmless(str(cell))) for cell in row))
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


@contextmanager
def show_progress(text: str) -> Iterator[None]:
    """Show `text` and the time since it began, on stderr if that is a terminal; erased at the end."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(text, total=None)
        yield
