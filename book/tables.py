"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def write_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """With an empty line after it."""
    lines = [_write_row(head), _write_row(["---"] * len(head)), *map(_write_row, rows)]
    return "\n".join(lines) + "\n\n"


def _write_row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |"


def code(value: object) -> str:
    """As code, and nothing where there is nothing."""
    return f"`{value}`" if str(value) else ""
