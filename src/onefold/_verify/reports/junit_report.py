"""For CI: JUnit's XML, one test case per check."""

from __future__ import annotations

from xml.etree import ElementTree

from onefold._verify.findings import CheckFinding, ProbeReport
from onefold._verify.reports.text_report import verdict_line


def junit(report: ProbeReport) -> str:
    """A target that could not be tested, or not be judged, is an error of the suite: no green run without a check."""
    unusable = report.verdict in ("unusable", "untold")
    suite = ElementTree.Element(
        "testsuite",
        name=f"onefold verify {report.target}",
        tests=str(len(report.findings) + unusable),
        failures=str(len(report.of("failed"))),
        skipped=str(len(report.of("skipped"))),
        errors=str(int(unusable)),
        time=f"{report.duration_s:.3f}",
    )
    for finding in report.findings:
        _add_case(suite, finding)
    if unusable:
        case = ElementTree.SubElement(suite, "testcase", classname="onefold.verify", name="target")
        ElementTree.SubElement(case, "error", message=_plain(verdict_line(report)))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, finding: CheckFinding) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname="onefold.verify", name=finding.check)
    if finding.outcome == "skipped":
        ElementTree.SubElement(case, "skipped", message=_plain(finding.seen))
    elif finding.outcome == "failed":
        failure = ElementTree.SubElement(case, "failure", message=_plain(finding.seen))
        lines = [f"promised: {finding.promise}", f"why: {finding.why}", f"what to do: {finding.advice}"]
        for sent, came in (exchange.lines() for exchange in finding.exchanges):
            lines += [f"sent: {sent}", f"came: {came}"]
        failure.text = _plain("\n".join(lines))


def _plain(text: str) -> str:
    """XML has no control characters."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
