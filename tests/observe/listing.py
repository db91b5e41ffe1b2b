"""The table of metrics in docs/metrics.md: `python -m tests.observe.listing` writes it."""

from __future__ import annotations

from pathlib import Path

from onefold._observe.instrument_table import INSTRUMENTS

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
MARK = "<!-- the table is written by `python -m tests.observe.listing` -->\n"


def table() -> str:
    lines = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    lines += [
        f"| `{each.prometheus_name}` | {each.kind} | {', '.join(each.labels) or '-'} | {each.help} |"
        for each in INSTRUMENTS
    ]
    return "\n".join(lines) + "\n"


def page_with(table: str) -> str:
    before, mark, after = PAGE.read_text().partition(MARK)
    assert mark, f"{PAGE} has no place for the table"
    rest = after.lstrip("\n")
    while rest.startswith("|"):
        rest = rest.partition("\n")[2]
    return f"{before}{mark}\n{table}\n{rest.lstrip()}"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()))
