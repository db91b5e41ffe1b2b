"""The dashboard: Prometheus understands what its panels ask, they ask for what is measured, and Grafana can show it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from onefold._observe.instrument_table import INSTRUMENTS
from tests.observe.test_alerts import promtool, rules

DASHBOARD = files("onefold._observe") / "dashboard.json"
CHOSEN = {"type": "prometheus", "uid": "${datasource}"}


def known_names() -> dict[str, set[str]]:
    """What can be asked for, and the labels that it has."""
    known: dict[str, set[str]] = {}
    for each in INSTRUMENTS:
        suffixes = ("_bucket", "_count", "_sum") if each.kind == "histogram" else ("",)
        known |= {each.prometheus_name + suffix: set(each.labels) | {"le"} for suffix in suffixes}
    return known


def name_faults(expr: str) -> list[str]:
    """Metrics and labels in an expression that are not there."""
    known, faults, labels = known_names(), [], {"job", "instance"}
    for name, selected in re.findall(r"(onefold_\w+)(\{[^}]*\})?", expr):
        labels |= known.get(name, set())
        if name not in known:
            faults.append(f"{name} is not a metric")
        elif unknown := set(re.findall(r"(\w+)[=!]~?\"", selected)) - known[name] - {"job"}:
            faults.append(f"{name} has no {unknown}")
    by = {label for group in re.findall(r"by \(([^)]*)\)", expr) for label in re.split(r", ?", group)}
    return [*faults, *(f"nothing has {label}" for label in sorted(by - labels))]


def test_rules_and_panels_ask_for_metrics_and_labels_that_are_there() -> None:
    asked = [*expressions(), *(rule.expr for rule in rules())]
    assert not [(expr, faults) for expr in asked if (faults := name_faults(expr))]
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"onefold_\w+", " ".join(asked))}
    assert {each.prometheus_name for each in INSTRUMENTS} == shown, "what is measured is shown"


def test_metrics_and_labels_that_are_not_there_are_found() -> None:
    """The control."""
    assert name_faults('sum by (consumer) (onefold_requests{key="a"})')[:1] == ["onefold_requests is not a metric"]
    assert name_faults('sum by (consumer) (onefold_requests_total{key="a"})') == [
        "onefold_requests_total has no {'key'}",
        "nothing has consumer",
    ]


def expressions() -> list[str]:
    """What the dashboard asks, with what Grafana puts in the place of its variables."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [expr.replace("$__rate_interval", "1m").replace("$job", ".*") for expr in asked]


def check_expressions(asked: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Each as a recording rule, which promtool parses."""
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    (directory / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    return promtool("check", "rules", str(directory / "panels.yml"))


def test_prometheus_understands_each_panel(tmp_path: Path) -> None:
    asked = expressions()
    assert len(asked) > 30
    assert not [expr for expr in asked if "$" in expr], "all variables are known"
    ran = check_expressions(asked, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{len(asked)} rules found" in ran.stdout


def test_a_panel_that_prometheus_does_not_understand_is_found(tmp_path: Path) -> None:
    """The control: a bracket is missing."""
    assert check_expressions([*expressions(), "sum by (job (onefold_relays)"], tmp_path).returncode != 0


def dashboard_faults(dashboard: dict[str, Any]) -> list[str]:
    """What Grafana's schema of a dashboard (classic, version 38) would not take, as far as this one uses it."""
    panels, faults = dashboard["panels"], []
    ids = [panel["id"] for panel in panels]
    if len(set(ids)) != len(ids):
        faults.append("two panels have one id")
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at, title = panel["gridPos"], panel["title"]
        if at["x"] + at["w"] > 24:
            faults.append(f"{title}: wider than the grid")
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if cells & taken:
            faults.append(f"{title}: covers another panel")
        taken |= cells
        if panel["type"] == "row":
            continue
        references = [target["refId"] for target in panel["targets"]]
        if len(set(references)) != len(references):
            faults.append(f"{title}: two queries have one refId")
        if any(part["datasource"] != CHOSEN for part in (panel, *panel["targets"])):
            faults.append(f"{title}: not of the data source that is chosen")
        used = set(re.findall(r"\$\{?(\w+)", json.dumps(panel)))
        if unknown := {name for name in used if not name.startswith("__")} - variables:
            faults.append(f"{title}: variables {unknown} are not there")
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            if gone := set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) - kept:
                faults.append(f"{title}: its legend names {gone}, which are summed away")
    return faults


def test_grafana_can_show_the_dashboard() -> None:
    assert dashboard_faults(json.loads(DASHBOARD.read_text())) == []


@pytest.mark.parametrize(
    ("fault", "plant"),
    [
        ("two panels have one id", lambda panel: panel.update(id=1)),
        ("covers another panel", lambda panel: panel["gridPos"].update(x=8)),
        ("wider than the grid", lambda panel: panel["gridPos"].update(w=30)),
        ("not of the data source", lambda panel: panel["targets"][0].update(datasource={"uid": "mine"})),
        ("variables", lambda panel: panel["targets"][0].update(expr="rate(onefold_requests_total[$interval])")),
        ("summed away", lambda panel: panel["targets"][0].update(legendFormat="{{operation}}")),
    ],
)
def test_a_dashboard_that_grafana_could_not_show_is_found(fault: str, plant: Callable[[Any], None]) -> None:
    """The controls."""
    dashboard = json.loads(DASHBOARD.read_text())
    plant(dashboard["panels"][1])
    assert fault in " ".join(dashboard_faults(dashboard))
