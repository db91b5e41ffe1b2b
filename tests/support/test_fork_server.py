"""A forked process is what `python WORDS` would have been: its arguments, streams, place, exit code and signals."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.fork_server import ForkServer, fork_server
from tests.support.patience import PATIENCE_S

PROGRAM = """
import json, os, sys
print(json.dumps([__name__, sys.argv[1:], os.getcwd(), dict(os.environ), sys.stdin.read()]))
print("beside", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture(scope="module")
def server() -> ForkServer:
    return fork_server("pass")


@pytest.mark.parametrize("way", ["-c", "-m", "file"])
def test_a_child_has_its_own_words_place_environment_streams_and_exit_code(
    server: ForkServer, way: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    what = {"-c": ["-c", PROGRAM], "-m": ["-m", "program"], "file": ["program.py"]}[way]
    environment = {"PYTHONPATH": str(tmp_path)}
    ran = server.run(*what, "a", "b", cwd=tmp_path, environment=environment, given="hello", within_s=PATIENCE_S)
    assert json.loads(ran.stdout) == ["__main__", ["a", "b"], str(tmp_path), environment, "hello"]
    assert (ran.stderr, ran.returncode) == ("beside\n", 3)


def test_an_error_is_a_traceback_and_exit_code_1(server: ForkServer) -> None:
    ran = server.run("-c", "import sys; print('before', flush=True); 1 / 0", one_stream=True, within_s=PATIENCE_S)
    assert (ran.stdout.splitlines()[0], ran.stdout.splitlines()[-1]) == (
        "before",
        "ZeroDivisionError: division by zero",
    )
    assert ran.returncode == 1


def test_what_is_registered_for_the_end_runs_at_the_end(server: ForkServer) -> None:
    ran = server.run("-c", "import atexit; atexit.register(print, 'over')", within_s=PATIENCE_S)
    assert (ran.stdout, ran.returncode) == ("over\n", 0)


def test_a_child_can_be_spoken_to_stopped_continued_and_killed(server: ForkServer) -> None:
    program = "import os, signal\nprint(input(), flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\nprint(input())"
    endings: list[Any] = []
    for ending in ("go on", "kill"):
        child = server.start_with_pipes("-c", program)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("first\n")
        assert child.stdout.readline() == "first\n"
        assert (child.wait_for_change(), child.poll()) == ("stopped", None)
        if ending == "kill":
            child.kill()
            endings.append((child.wait_for_change(), child.returncode))
        else:
            child.send_signal(signal.SIGCONT)
            endings.append((child.communicate("second\n", PATIENCE_S), child.returncode))
        child.close()
    assert endings == [("second\n", 0), ("killed", -signal.SIGKILL)]


def test_no_child_outlives_its_fork_server() -> None:
    server = ForkServer("pass")
    child = server.start_with_pipes("-c", "print('there', flush=True); input()")
    assert child.stdout is not None
    assert child.stdout.readline() == "there\n"
    server.end()
    assert child.stdout.read() == ""  # only its death closes the other end
    assert child.stdin is not None
    child.stdin.close()
    child.stdout.close()
    os.close(child._ended)
