"""For node_exporter's textfile collector: whether the API was testable and kept each promise, and when that was known.

A skipped check has no sample: it neither passed nor failed.
"""

from __future__ import annotations

from onefold._verify.findings import ProbeReport


def metrics(report: ProbeReport) -> str:
    """In Prometheus' text format."""
    target = f'target="{_label(report.target)}",profile="{_label(report.profile)}"'
    lines = [
        "# HELP onefold_verify_success Whether all checks passed and at least one was done.",
        "# TYPE onefold_verify_success gauge",
        f"onefold_verify_success{{{target}}} {int(report.verdict == 'passed')}",
        "# HELP onefold_verify_usable Whether the target could be tested, and its answers or a count told.",
        "# TYPE onefold_verify_usable gauge",
        f"onefold_verify_usable{{{target}}} {int(report.verdict in ('passed', 'failed'))}",
        "# HELP onefold_verify_check_passed Whether a check passed.",
        "# TYPE onefold_verify_check_passed gauge",
    ]
    lines += [
        f'onefold_verify_check_passed{{{target},check="{finding.check}"}} {int(finding.outcome == "passed")}'
        for finding in report.findings
        if finding.outcome != "skipped"
    ]
    lines += [
        "# HELP onefold_verify_requests Requests that were sent.",
        "# TYPE onefold_verify_requests gauge",
        f"onefold_verify_requests{{{target}}} {report.requests}",
        "# HELP onefold_verify_duration_seconds How long the run took.",
        "# TYPE onefold_verify_duration_seconds gauge",
        f"onefold_verify_duration_seconds{{{target}}} {report.duration_s:.3f}",
        "# HELP onefold_verify_last_run_timestamp_seconds When the run began.",
        "# TYPE onefold_verify_last_run_timestamp_seconds gauge",
        f"onefold_verify_last_run_timestamp_seconds{{{target}}} {report.started_at_s:.3f}",
    ]
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
