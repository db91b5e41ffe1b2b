"""The package as a release has it: built from this checkout, and installed into an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]

#: 2026-01-01: what is built twice has the same bytes, whatever the clock says.
EPOCH: Final = "1767225600"


def build(into: Path, *targets: str, root: Path = ROOT) -> list[Path]:
    """Build wheel and sdist, or one of them."""
    words = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    for target in targets:
        words += ["-t", target]
    environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH}
    ran = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return sorted(into.iterdir())


def make_environment(folder: Path, wheel: Path, extras: Sequence[str] = (), more: Sequence[str] = ()) -> Path:
    """A virtual environment with the wheel and its extras, at the versions of constraints.txt; its interpreter. The
    test is skipped where there is no index to install from."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    python = folder / "bin" / "python"
    named = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    words = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", named, *more]
    words += ["-c", str(ROOT / "constraints.txt")]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=1200, check=False, env=outside())
    if "(from versions: none)" in ran.stderr:
        pytest.skip(f"there is no package index here to install from: {ran.stderr[-500:]}")
    assert ran.returncode == 0, ran.stderr[-2_000:]
    return python


def outside() -> dict[str, str]:
    """The surroundings of a process that is to find nothing of this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ONEFOLD_", "VIRTUAL"))}
    return kept | {"PYTHONUNBUFFERED": "1"}


def copy_examples(folder: Path) -> Path:
    """The examples alone, in a folder to run them from."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("shop", "__pycache__"))
    return folder
