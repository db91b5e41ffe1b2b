"""For browsers: one page that needs nothing but itself."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape

from onefold._verify.findings import CheckFinding, ProbeReport
from onefold._verify.reports.text_report import verdict_line

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 2em }
td, th { padding: .3em .9em; text-align: left; vertical-align: top }
tr:nth-child(even) { background: #f4f4f4 }
pre { background: #f4f4f4; padding: .7em; overflow-x: auto; white-space: pre-wrap }
.failed, .unusable, .untold { color: #a00 } .passed { color: #070 } .skipped { color: #666 }
"""


def html_page(report: ProbeReport) -> str:
    """The verdict, what failed with its evidence, and a table of all checks."""
    moment = datetime.fromtimestamp(report.started_at_s, tz=UTC).isoformat(timespec="seconds")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><title>onefold verify</title>',
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>onefold verify</h1><p class="{report.verdict}">{escape(verdict_line(report))}</p>',
        f"<p>Run {escape(report.run)}, {moment}, {report.duration_s:.1f} s.</p>",
        *map(_failure, report.of("failed")),
        "<h2>All checks</h2><table><tr><th>check</th><th>outcome</th><th>what was seen</th></tr>",
        *map(_row, report.findings),
        "</table></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _failure(finding: CheckFinding) -> str:
    evidence = "\n".join("> {}\n< {}".format(*exchange.lines()) for exchange in finding.exchanges)
    return (
        f'<h2 class="failed">{escape(finding.check)}</h2><p>{escape(finding.seen)}</p><ul>'
        f"<li>Promised: {escape(finding.promise)}</li><li>Why it matters: {escape(finding.why)}</li>"
        f"<li>What to do: {escape(finding.advice)}</li></ul><pre>{escape(evidence)}</pre>"
    )


def _row(finding: CheckFinding) -> str:
    return (
        f'<tr><td>{escape(finding.check)}</td><td class="{finding.outcome}">{finding.outcome}</td>'
        f"<td>{escape(finding.seen)}</td></tr>"
    )
