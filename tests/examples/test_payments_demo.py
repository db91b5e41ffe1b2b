"""`make demo` balances its books, and would notice if it did not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from examples.payments.demo import Fire, verdict

ROOT = Path(__file__).parents[2]


def test_the_demo_ends_with_every_payment_made_once() -> None:
    command = [sys.executable, "-m", "examples.payments.demo", "--seed", "7"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Every payment happened once." in run.stdout


def test_control_its_verdict_finds_a_lost_a_doubled_and_a_differently_answered_payment() -> None:
    fire = Fire("http://nowhere", seed=1)
    for intent in fire.intents:
        intent.answers.add(b"one answer")
    rows = [(n, intent.amount) for n, intent in enumerate(fire.intents)]
    assert verdict(fire, rows) == []
    assert "lost" in verdict(fire, rows[1:])[0]
    assert "too often" in verdict(fire, [*rows, rows[0]])[0]
    fire.intents[0].answers.add(b"another answer")
    assert "different answers" in verdict(fire, rows)[0]
