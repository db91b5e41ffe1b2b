"""The page of operations names alerts that there are, and sums that `onefold capacity` comes to."""

from __future__ import annotations

import re
from pathlib import Path

from onefold._cli.sizing import ExpectedLoad, size

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ALERTS = set(re.findall(r"alert: (\w+)", (ROOT / "src" / "onefold" / "_observe" / "alerts.yml").read_text()))


def unknown_alerts(page: str) -> set[str]:
    return set(re.findall(r"`(Onefold[A-Z]\w+)`", page)) - ALERTS


def test_the_alerts_that_notice_a_failure_are_there() -> None:
    assert len(set(re.findall(r"`(Onefold[A-Z]\w+)`", PAGE))) >= 10
    assert unknown_alerts(PAGE) == set()
    assert unknown_alerts("`OnefoldNothing`") == {"OnefoldNothing"}, "the control"


def test_the_gigabytes_of_a_day_are_those_of_the_command() -> None:
    [command] = re.findall(r"onefold capacity (--rps.*)", PAGE)
    assert command == "--rps 10000 --ttl 24h --body 600 --events 2"
    need = size(ExpectedLoad(requests_per_s=10_000, retention_s=86_400, body_bytes=600, events_per_request=2))
    assert f"{need.records.rows / 1e6:.0f} million records" in PAGE
    assert f"would be {need.naive_bytes / 1e9:.0f} GB" in PAGE
    [said] = re.findall(r"about (\d+) GB with indexes", PAGE)
    assert abs(need.records.total_bytes / 1e9 - int(said)) < 0.02 * int(said)
