"""For programs: a JSON document with every finding."""

from __future__ import annotations

import json
from dataclasses import asdict

from onefold._verify.findings import ProbeReport


def json_document(report: ProbeReport) -> str:
    """The report and its verdict."""
    return json.dumps({"verdict": report.verdict, **asdict(report)}, indent=2) + "\n"
