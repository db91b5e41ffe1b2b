"""`onefold storm`: tables, JSON, plots and a page; fails on a policy that keeps a server down."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.commands import one_line, onefold, told

MODULE = """
from onefold._policy.breaker import BreakerConfig
from onefold._policy.retry import RetryPolicy

good = RetryPolicy(attempts_max=2, budget=None, breaker=BreakerConfig())
storming = RetryPolicy(budget=None, breaker=None)
text = "policy"


def made():
    return RetryPolicy(attempts_max=1, breaker=None)


def broken():
    raise LookupError("no\\nconfiguration")
"""

#: The command imports the policy's module before it runs anything: one server instead of the four of `--quick`, beside
#: the FIFO server of the stalls. A policy that keeps servers busy takes thirteen seconds of computing on all of them.
ONE_SERVER = """
from dataclasses import replace
from onefold._simulate import experiments

experiments.QUICK = replace(experiments.QUICK, servers=(experiments.DEADLINES,))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clients.py").write_text(MODULE)
    return tmp_path


def test_a_good_policy_passes_and_everything_is_written(folder: Path) -> None:
    answer = onefold("storm", "--quick", "--policy", "clients:made", "--plots", "p/q", "--html", "r.html", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    assert (
        answer.stderr
        == "onefold: clients:made passes: it recovers in every experiment, and is never worse than no retries\n"
    )
    assert "A stall of 10 s, FIFO server" in answer.stdout
    assert len(re.findall(r"^clients:made ", answer.stdout, re.MULTILINE)) == 4
    pictures = sorted((folder / "p" / "q").iterdir())
    assert [picture.name for picture in pictures] == ["failures.png", "overload.png", "stall.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    page = (folder / "r.html").read_text()
    assert page.count('src="data:image/png;base64,') == 3
    assert page.count("<table>") == 4
    assert "clients:made passes" in page
    assert not re.search(r"//|<script|<link", re.sub(r'src="data:[^"]*"', "", page))


@pytest.mark.parametrize("servers", [1, pytest.param(4, marks=pytest.mark.soak)])
def test_a_metastable_policy_fails_with_what_to_change(folder: Path, servers: int) -> None:
    if servers == 1:
        (folder / "clients.py").write_text(ONE_SERVER + MODULE)
    answer = onefold("storm", "--quick", "--policy", "clients:storming", "--json", cwd=folder)
    assert answer.returncode == 1
    assert "onefold: clients:storming is metastable" in answer.stderr
    assert "stall of 10 s (FIFO server, 100 processes): recovers not within 65 s" in answer.stderr
    assert "set budget=BudgetConfig()" in answer.stderr
    found = json.loads(answer.stdout)
    [verdict] = found["verdicts"]
    assert (verdict["policy"], verdict["metastable"]) == ("clients:storming", True)
    assert {finding["experiment"] for finding in verdict["findings"]} == {"stall", "overload"}
    assert {cell["policy"] for cell in found["stalls"]} == {"no retries", "onefold", "clients:storming"}
    assert len({cell["server"] for cell in found["overloads"]}) == servers


@pytest.mark.soak
def test_the_same_seed_prints_the_same_and_several_policies_are_judged(folder: Path) -> None:
    words = ("storm", "--quick", "--seed", "9", "--json", "--policy", "clients:good", "--policy", "clients:made")
    first, second = (told(onefold(*words, cwd=folder)) for _ in range(2))
    assert first == second
    assert first["seed"] == 9
    assert [verdict["policy"] for verdict in first["verdicts"]] == ["clients:good", "clients:made"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("clients", "must be module:attribute"),
        ("clients:missing", "'clients' has no 'missing'"),
        ("nowhere:policy", "there is no module 'nowhere'"),
        ("clients:text", "'clients:text' is a str; give a RetryPolicy, or a function that returns one"),
        ("clients:broken", "calling 'clients:broken' failed: LookupError: no configuration"),
    ],
)
def test_a_target_that_is_no_policy_is_told_in_one_line(folder: Path, target: str, said: str) -> None:
    assert said in one_line(onefold("storm", "--quick", "--policy", target, cwd=folder))


def test_without_matplotlib_it_says_what_to_install_before_anything_is_run(folder: Path) -> None:
    answer = onefold("storm", "--html", "r.html", cwd=folder, without="matplotlib")
    assert "plots need matplotlib: pip install 'onefold[storm]'" in one_line(answer)
