"""Renders templates to HTML.

Everything is escaped, and characters that cannot be seen (or that turn the reading direction) are written out: the
pages show input of strangers.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from onefold._kernel.extras import missing_extra
from onefold._kernel.readable import age, harmless, write_count

try:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup
except ModuleNotFoundError as error:
    raise missing_extra(error, "console") from None

_HERE: Final = Path(__file__).parent

MEDIA_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8"}


def make_environment() -> Environment:
    """Templates, and the filters that they have."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters.update(age=age, size=size, when=when, minute=minute)
    environment.filters.update(short=short, capped=capped, counted=write_count)
    return environment


def read_static_files() -> dict[str, tuple[bytes, str]]:
    """Each static file with its media type, by its name. Only these are served: no path of a request is opened."""
    return {
        file.name: (file.read_bytes(), MEDIA_TYPES[file.suffix])
        for file in (_HERE / "static").iterdir()
        if file.suffix in MEDIA_TYPES
    }


def when(ms: int | None, now_ms: int | None = None) -> Markup:
    """A time: exact for those who read, and how long ago or ahead it is where `now_ms` is given."""
    if ms is None:
        return Markup("-")
    exact = datetime.fromtimestamp(ms / 1000, tz=UTC)
    text = exact.strftime("%Y-%m-%d %H:%M:%S")
    if now_ms is not None:
        span = age(abs(now_ms - ms) / 1000)
        relative = f"in {span}" if ms > now_ms else f"{span} ago"
        return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(exact.isoformat(), text, relative)
    return Markup('<time datetime="{}">{} UTC</time>').format(exact.isoformat(), text)


def minute(s: int) -> str:
    """A time that is known to the minute."""
    return datetime.fromtimestamp(s, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def size(count: int | None) -> str:
    """A number of bytes, for people."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"


def short(text: str, chars: int = 12) -> str:
    """The beginning of an id."""
    return text if len(text) <= chars else f"{text[:chars]}…"


def capped(count: int, limit: int) -> str:
    """A count that was ended at a limit."""
    return f"{limit:,}+" if count >= limit else f"{count:,}"


def _finalize(value: Any) -> Any:
    if value is None:
        return ""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value
