"""For people: the verdict first, then what failed and what to do, then the rest in a line each."""

from __future__ import annotations

from collections.abc import Iterator

from onefold._verify.findings import CheckFinding, ProbeReport


def verdict_line(report: ProbeReport) -> str:
    """The whole run in a line."""
    failed, passed, skipped = (len(report.of(outcome)) for outcome in ("failed", "passed", "skipped"))
    figures = (
        f"{passed} passed, {failed} failed, {skipped} skipped; {report.requests} requests, profile {report.profile}"
    )
    match report.verdict:
        case "passed":
            return f"PASSED: {report.target} keeps the contract: {figures}"
        case "failed":
            return f"FAILED: {report.target} breaks the contract: {figures}"
        case "untold":
            return (
                f"UNDECIDED: {report.target}: two executions have the same answer, so that a retry that ran again "
                f"looks like a replay; give --count with a command that prints how often it has happened: {figures}"
            )
        case "unusable":
            reason = report.unusable or "no check could be done: each was skipped"
            return f"NOT TESTED: {report.target}: {reason}"


def text(report: ProbeReport) -> str:
    """The whole report."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ProbeReport) -> Iterator[str]:
    yield verdict_line(report)
    if report.verdict == "failed" and report.unusable is not None:
        yield f"stopped before the last check: {report.unusable}"
    for finding in report.of("failed"):
        yield ""
        yield from _failure(finding)
    if skipped := report.of("skipped"):
        yield ""
        yield from (f"skipped  {finding.check}: {finding.seen}" for finding in skipped)
    if passed := report.of("passed"):
        yield ""
        yield from (f"passed   {finding.check}: {finding.seen}" for finding in passed)
    if not report.counted and report.verdict in ("passed", "failed"):
        yield ""
        yield "Effects were judged by the answers alone. --count has a command count them: `onefold docs verify`."


def _failure(finding: CheckFinding) -> Iterator[str]:
    yield f"FAILED   {finding.check}: {finding.seen}"
    yield f"  promised    {finding.promise}"
    yield f"  why         {finding.why}"
    yield f"  what to do  {finding.advice}"
    for exchange in finding.exchanges:
        sent, came = exchange.lines()
        yield f"  sent        {sent}"
        yield f"  came        {came}"
