"""How commands speak: results on stdout, everything else on stderr, and never a password or a control character."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onefold._kernel.events import Event
from onefold.brokers.connect import BrokerGiven

#: Of a table that no terminal shows: a program may want to read it, and no column is to be cut.
_WIDE = 400


def say(text: str) -> None:
    """A line about how things go."""
    typer.echo(f"onefold: {text}", err=True)


def answer(value: object) -> None:
    """The result, as JSON."""
    typer.echo(json.dumps(value, indent=2, default=str))


def tell_as_json(event: Event) -> None:
    """What a worker tells, as a line of JSON."""
    typer.echo(json.dumps({"event": type(event).__name__, **asdict(event)}, default=str))


def log_to_stderr() -> None:
    """Show what workers log (that they pause, that they go on), unless the application does that itself."""
    log = logging.getLogger("onefold")
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("onefold: %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def printed(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table."""
    table = Table(*columns, title=title, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text("-" if cell is None else harmless(str(cell))) for cell in row))
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def harmless(text: str) -> str:
    """The text without what would move the cursor: messages come from strangers."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def age(seconds: float | None) -> str:
    """A span as people say it."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def moment(ms: int | None) -> str | None:
    """A time as it is written in JSON and in tables."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def address(given: str) -> str:
    """An address without what may be secret in it: user, password and options; the first one of several."""
    scheme, separator, _ = given.partition("://")
    if not separator:
        return given
    try:
        parts = urlsplit(given)
    except ValueError:
        return f"{scheme}://..."
    if given.count("@") > parts.netloc.count("@"):  # a password that nobody quoted: who knows where it ends
        return f"{scheme}://..."
    host, several, _ = parts.netloc.rpartition("@")[2].partition(",")
    return f"{scheme}://{host},..." if several else f"{scheme}://{host}{parts.path}"


def broker_name(given: BrokerGiven | None) -> str:
    """What a relay publishes to."""
    if given is None:
        return "local"
    if isinstance(given, str):
        return address(given)
    name: str = getattr(given, "__name__", type(given).__name__)
    return "a broker of its own" if name == "<lambda>" else name
