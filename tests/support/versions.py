"""Other versions of a library than the one that is installed, for a process that has them first on its path."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def lower_bound(extra: str) -> str:
    """The oldest version that an extra with one requirement allows."""
    [requirement] = EXTRAS[extra]
    return requirement.partition(">=")[2].partition(",")[0]


def install(requirements: Sequence[str], into: Path) -> None:
    """Skips the test where there is no index to install from. A version that the index does not have, or that cannot be
    installed, is a failure: a lower bound names it."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    ran = subprocess.run(
        [*command, "--no-compile", "--target", str(into), *requirements],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "(from versions: none)" in ran.stderr:
        pytest.skip(f"there is no package index here to install {' '.join(requirements)} from")
    assert ran.returncode == 0, ran.stderr[-2_000:]


def run_with(installed: Path, *arguments: str, **variables: str) -> str:
    """What Python says where that version is found before the one that is installed."""
    path = os.pathsep.join((str(installed), str(ROOT / "src"), str(ROOT)))
    ran = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )
    assert ran.returncode == 0, ran.stdout[-8_000:] + ran.stderr[-4_000:]
    return ran.stdout
