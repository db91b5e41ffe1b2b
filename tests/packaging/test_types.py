"""A user's program, in a folder of its own, beside the package as it is installed: its types hold, for both checkers.

They read every library that the program imports, which takes a minute: `make types`, and with `make soak`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import onefold

PROGRAM = Path(__file__).with_name("typed_program.py")
PYRIGHT = "pyright@1.1.414"

#: The control: what a checker that reads the package must find.
PLANTED = """
from onefold import RetryPolicy, Transaction

def planted(tx: Transaction[int]) -> str:
    RetryPolicy(attempts=3)
    return tx.connection
"""

pytestmark = pytest.mark.soak


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(PROGRAM, tmp_path / "shop.py")
    (tmp_path / "planted.py").write_text(PLANTED)
    return tmp_path


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(onefold.__file__).parent / "py.typed").exists()


def test_mypy_finds_no_fault_in_a_users_program(folder: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "shop.py", "planted.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200, check=False)
    faults = [line for line in ran.stdout.splitlines() if ": error:" in line]
    assert [fault for fault in faults if not fault.startswith("planted.py")] == []
    assert len(faults) == 2, ran.stdout + ran.stderr


@pytest.mark.skipif(shutil.which("npx") is None, reason="pyright runs on node, and npx is not installed")
def test_pyright_finds_no_fault_in_a_users_program(folder: Path) -> None:
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    command = ["npx", "--yes", PYRIGHT, "--outputjson", "--pythonpath", sys.executable, "shop.py", "planted.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200, check=False)
    assert ran.stdout.startswith("{"), ran.stderr
    faults = [(Path(each["file"]).name, each["message"]) for each in json.loads(ran.stdout)["generalDiagnostics"]]
    assert [fault for fault in faults if fault[0] != "planted.py"] == []
    assert len(faults) == 2, faults
