"""Kills a saga's process at one point, starts it again, and looks at what stands."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from tests.saga.kills.world import STEPS, UNDOS, Outside, problems
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

#: Every function of the saga, before its effect and after it, where the engine has not been told.
COMPLETES = [f"{step}:{moment}" for step in STEPS for moment in ("before", "mid")]
COMPENSATES = [f"{action}:{moment}" for action in (*STEPS, *UNDOS.values()) for moment in ("before", "mid")]
#: After the last record of a saga, where its own end is not recorded.
ENDS = [("complete", "end:before"), ("abort", "end:before")]
POINTS = [("complete", at) for at in COMPLETES] + [("abort", at) for at in COMPENSATES] + ENDS
#: On DBOS there is one more record, of the end of the function.
DBOS_ENDS = [("complete", "end:mid"), ("abort", "end:mid")]

PRELUDE = "import tests.saga.kills.sagas"
MAIN = "import sys; from tests.saga.kills.sagas import main; main(*sys.argv[1:])"


def kill_and_restart(
    world: Path, url: str, mode: str, at: str, *, keyed: bool = True, engine: str = "tests.saga.kills.sagas:open_dbos"
) -> Outside:
    """Run the saga until its process kills itself there, and again to its end."""
    outside = Outside(world)
    outside.create()
    words = [engine, url, str(world), at, mode, "keyed" if keyed else "bare"]
    first = run(*words)
    assert first.returncode == -signal.SIGKILL, f"it did not die at {at}: {first.stdout} {first.stderr}"
    second = run(*words)
    assert second.returncode == 0, second.stderr
    assert second.stdout.split() == ["open", '"compensated"' if mode == "abort" else '"shipped"'], second.stdout
    return outside


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return fork_server(PRELUDE).run("-c", MAIN, *words, within_s=PATIENCE_S * 2)


def judge(outside: Outside, mode: str) -> list[str]:
    return problems(outside, completes=mode == "complete")
