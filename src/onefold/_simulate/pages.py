"""What was found out, as a page: HTML that needs nothing but itself, and the tables of a page in Markdown."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from onefold._simulate.experiments import Storm
from onefold._simulate.tables import Table, tables
from onefold._simulate.verdicts import PolicyVerdict
from onefold.errors import ConfigurationError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 2em } th, td { padding: .3em .9em; text-align: right }
th:first-child, td:first-child { text-align: left } tr:nth-child(even) { background: #f4f4f4 }
img { max-width: 100% } .bad { color: #a00 } .good { color: #070 }
"""


def html(storm: Storm, verdicts: Sequence[PolicyVerdict], pictures: Mapping[str, bytes]) -> str:
    """One file, with its plots in it."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>onefold storm</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>onefold storm</h1><p>Seed {storm.seed}; every run is the same for the same seed.</p>",
        *map(_verdict, verdicts),
    ]
    left = dict(pictures)
    for table in tables(storm):
        parts.append(f"<h2>{escape(table.title)}</h2>")
        # One picture shows several tables of the same experiment: it stands above the first.
        if (picture := left.pop(table.key.partition(" ")[0], None)) is not None:
            image = b64encode(picture).decode("ascii")
            parts.append(f'<img alt="{escape(table.title)}" src="data:image/png;base64,{image}">')
        parts.append(_html_table(table))
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _verdict(verdict: PolicyVerdict) -> str:
    name = escape(verdict.policy)
    if verdict.passes:
        return f'<p class="good">{name} passes.</p>'
    harm = "is metastable" if verdict.metastable else "is worse than no retries"
    findings = "".join(f"<li>{escape(str(finding))}</li>" for finding in verdict.findings)
    return f'<p class="bad">{name} {harm}:</p><ul>{findings}</ul>'


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in table.rows)
    return f"<table><tr>{head}</tr>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def markdown(table: Table) -> str:
    """A table, as it stands in a page."""
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def refresh_tables(page: str, storm: Storm) -> str:
    """The page with its tables made anew. Each stands between `<!-- storm: KEY -->` and `<!-- storm end -->`."""
    for table in tables(storm):
        mark = f"<!-- storm: {table.key} -->\n"
        if page.count(mark) != 1:
            raise ConfigurationError(f"the page has {page.count(mark)} blocks {mark.strip()!r}, and must have one")
        before, _, rest = page.partition(mark)
        _, end, after = rest.partition("\n<!-- storm end -->")
        page = f"{before}{mark}{markdown(table)}{end}{after}"
    return page
