"""Alert rules: Prometheus loads them, each alert fires and clears. What the dashboard asks is in test_dashboard.py."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from onefold.testing.servers import ServerUnavailable
from tests.cli.commands import onefold
from tests.cli.conftest import shop
from tests.observe.listing import PAGE
from tests.support.prometheus_server import program

__all__ = ["shop"]

RULES = files("onefold._observe") / "alerts.yml"
DASHBOARD = files("onefold._observe") / "dashboard.json"

#: Grows for an hour, then stands still; what it stands beside.
GROWS, ONE, TWO, OLD = "0+6x60 360x120", "1x60 0x120", "2x60 0x120", "900x60 0x120"
#: Is there with its first value, and stays.
BEGINS = "_x10 1x170"
#: Is not scraped for a while: its process is not there.
AWAY = "1x10 _x60 1x110"

#: For each alert what makes it fire for an hour, and the labels that it then has.
CAUSES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "OnefoldStoreUnavailable": (
        {'onefold_requests_total{operation="POST /c",outcome="unavailable"}': GROWS}, 'operation="POST /c"'
    ),
    "OnefoldAuthenticationFails": (
        {'onefold_authentication_failures_total{operation="POST /b"}': GROWS}, 'operation="POST /b"'
    ),
    "OnefoldKeyMismatches": (
        {
            'onefold_requests_total{operation="POST /a",outcome="mismatch"}': GROWS,
            'onefold_requests_total{operation="POST /a",outcome="run"}': "0+6x180",
        },
        'operation="POST /a"',
    ),
    "OnefoldRequestsReleased": (
        {
            'onefold_request_duration_seconds_count{operation="POST /a",end="released"}': GROWS,
            'onefold_request_duration_seconds_count{operation="POST /a",end="stored"}': "0+6x180",
        },
        'operation="POST /a"',
    ),
    "OnefoldRequestsParked": (
        {'onefold_completions_total{operation="POST /a",outcome="parked"}': BEGINS}, 'operation="POST /a"'
    ),
    "OnefoldOutboxStuck": ({"onefold_outbox_oldest_age_seconds": OLD}, ""),
    "OnefoldNoRelay": (
        {"onefold_relays": "0x60 1x120", "onefold_outbox_oldest_age_seconds": OLD}, ""
    ),
    "OnefoldRelayGone": ({"onefold_relay_buckets": AWAY}, ""),
    "OnefoldRelayPaused": ({"onefold_relay_paused": ONE}, ""),
    "OnefoldDestinationPaused": ({'onefold_destination_paused{destination="bills"}': ONE}, 'destination="bills"'),
    "OnefoldOutboxDeadLetters": ({'onefold_outbox_stopped{state="dead"}': ONE}, ""),
    "OnefoldRelayTakeovers": (
        {"onefold_relay_takeovers_total": GROWS}, ""
    ),
    "OnefoldDeadLetters": ({'onefold_failed_messages{consumer="billing",state="dead"}': ONE}, 'consumer="billing"'),
    "OnefoldMessagesParked": (
        {'onefold_failed_messages{consumer="billing",state="parked"}': ONE}, 'consumer="billing"'
    ),
    "OnefoldConsumerGone": (
        {'onefold_failed_messages{consumer="mail",state="dead"}': AWAY.replace("1x", "0x")}, 'consumer="mail"'
    ),
    "OnefoldConsumerPaused": ({'onefold_consumer_paused{consumer="billing"}': ONE}, 'consumer="billing"'),
    "OnefoldSagasStuck": ({'onefold_sagas_total{saga="order",outcome="stuck"}': GROWS}, 'saga="order"'),
    "OnefoldSagasStopped": ({'onefold_sagas_total{saga="order",outcome="stopped"}': BEGINS}, 'saga="order"'),
    "OnefoldBreakerOpen": ({'onefold_client_breaker{host="ledger"}': TWO}, 'host="ledger"'),
    "OnefoldRetryBudgetExhausted": (
        {'onefold_client_stops_total{host="ledger",reason="budget"}': GROWS}, 'host="ledger"'
    ),
    "OnefoldShedding": ({'onefold_shed_total{reason="queue full",priority="0"}': GROWS}, ""),
}  # fmt: skip


class Rule(NamedTuple):
    """An alert, as far as these tests want to know it."""

    alert: str
    expr: str
    severity: str


def rules() -> list[Rule]:
    """Read without a library for YAML, which the tests would need for this alone."""
    found = []
    for text in RULES.read_text().split("- alert: ")[1:]:
        expr = re.findall(r"expr: (?:>-)?(.*?)\n        \w+:", text, re.DOTALL)
        severity = re.findall(r"severity: (\w+)", text)
        found.append(Rule(text.partition("\n")[0], *expr, *severity))
    return found


def with_job(series: str) -> str:
    name, _, labels = series.partition("{")
    return f'{name}{{job="shop"{"," if labels else ""}{labels or "}"}'


def promtool_test(*alerts: str) -> dict[str, Any]:
    """For promtool: each fires within the hour, and has cleared 80 minutes later. All causes stand side by side in
    one test: promtool evaluates every rule for every test."""
    series: dict[str, str] = {}
    questions: list[dict[str, Any]] = []
    severities = {rule.alert: rule.severity for rule in rules()}
    for alert in alerts:
        causes, labels = CAUSES[alert]
        assert all(series.get(name, values) == values for name, values in causes.items()), f"{alert} disturbs another"
        series.update(causes)
        fires = f'alertname="{alert}",alertstate="firing",job="shop",severity="{severities[alert]}"'
        fires = f"ALERTS{{{fires}{labels and f',{labels}'}}}"
        question = f'ALERTS{{alertname="{alert}"}}'
        questions += [
            {"expr": question, "eval_time": "50m", "exp_samples": [{"labels": fires, "value": 1}]},
            {"expr": question, "eval_time": "140m", "exp_samples": []},
        ]
    return {
        "interval": "1m",
        "input_series": [{"series": with_job(name), "values": values} for name, values in series.items()],
        "promql_expr_test": questions,
    }


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        command = [str(program("promtool")), *words]
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    return subprocess.run(command, capture_output=True, text=True, check=False)


def run_tests(tests: list[dict[str, Any]], directory: Path) -> subprocess.CompletedProcess[str]:
    (directory / "rules.yml").write_text(RULES.read_text())
    (directory / "tests.yml").write_text(
        json.dumps({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests})
    )
    return promtool("test", "rules", str(directory / "tests.yml"))


def test_each_alert_fires_and_clears_at_its_threshold(tmp_path: Path) -> None:
    assert {rule.alert for rule in rules()} == CAUSES.keys()
    ran = run_tests([promtool_test(*CAUSES)], tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_an_alert_that_does_not_fire_is_found(tmp_path: Path) -> None:
    """The control: nothing pauses."""
    planted = promtool_test("OnefoldRelayPaused")
    planted["input_series"][0]["values"] = "0x180"
    assert "FAILED" in (ran := run_tests([planted], tmp_path)).stdout + ran.stderr
    assert ran.returncode != 0


def test_each_alert_has_a_section_that_says_what_to_do() -> None:
    page = PAGE.read_text()
    assert not [rule.alert for rule in rules() if f"### {rule.alert}\n" not in page]


def test_prometheus_takes_what_the_command_prints(tmp_path: Path) -> None:
    (tmp_path / "printed.yml").write_text(onefold("metrics", "--alerts").stdout)
    ran = promtool("check", "rules", "--lint=all", "--lint-fatal", str(tmp_path / "printed.yml"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(CAUSES)} rules found" in ran.stdout


def test_prometheus_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    [config] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(config)
    assert promtool("check", "config", str(tmp_path / "prometheus.yml")).returncode != 0, "the control: no rules"
    (tmp_path / "onefold.rules.yml").write_text(RULES.read_text())
    ran = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_command_prints_them() -> None:
    assert onefold("metrics", "--alerts").stdout == RULES.read_text()
    assert onefold("metrics", "--dashboard").stdout == DASHBOARD.read_text()
    assert "give one of --alerts and --dashboard" in onefold("metrics").stderr
