"""Real relays and consumers to be killed: a small process, everything imported, single-threaded, that forks a child
for each job.

A child says on a pipe where it was struck, right before it is; and when it ends by itself, what it crossed and what
happened to it. Starting an interpreter for each would take a second; a fork takes a few milliseconds.

    fork server <- {"do": "start", ...}     one line of JSON per command
    fork server -> {"pid": ...}             and one per answer
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from tests.chaos.jobs import Job, perform
from tests.chaos.places import Place
from tests.support.crash import Crossing

ROOT = Path(__file__).parents[2]

State: TypeAlias = Literal["ended", "killed", "stopped"]

#: A child that hangs is a bug that should show, not a test run that never ends.
CHILD_S_MAX = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a child: where it was struck, what it crossed and what it was told of if it ended by itself."""

    pid: int
    state: State
    struck: Crossing | None
    crossings: list[Crossing]
    told: dict[str, int]


class ForkServer:
    """The parent's end."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", "from tests.chaos.fork_server import serve; serve()"]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input is the end of it, and of its children
        assert self._process.returncode == 0

    def start(self, job: Job) -> int:
        """Fork a child that does this; its process id."""
        pid: int = self._told({"do": "start", "job": asdict(job)})["pid"]
        return pid

    def send(self, pid: int, number: signal.Signals) -> None:
        self._told({"do": "signal", "pid": pid, "number": number})

    def wait(self, pid: int) -> Fate:
        """Returns when the child has ended, died or stopped."""
        said = self._told({"do": "wait", "pid": pid})
        struck = Crossing(*said["struck"]) if said["struck"] else None
        crossings = [Crossing(*crossing) for crossing in said["crossings"]]
        return Fate(pid=pid, state=said["state"], struck=struck, crossings=crossings, told=said["told"])

    def run(self, job: Job) -> Fate:
        return self.wait(self.start(job))

    def end(self, pid: int, number: signal.Signals = signal.SIGTERM) -> Fate:
        self.send(pid, number)
        return self.wait(pid)

    def _told(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_line(command))
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said


# --- in the fork server -------------------------------------------------------------------------------------------


def serve() -> None:
    """Obey until the input ends; then no child is left."""
    pipes: dict[int, int] = {}
    for line in sys.stdin.buffer:
        command = json.loads(line)
        answer: dict[str, Any]
        match command["do"]:
            case "start":
                given = command["job"]
                job = Job(**{**given, "place": Place(**given["place"]), "at": tuple(given["at"])})
                answer = {"pid": _forked(job, pipes)}
            case "signal":
                os.kill(command["pid"], command["number"])
                answer = {}
            case _:
                answer = _fate(command["pid"], pipes)
        sys.stdout.buffer.write(_line(answer))
        sys.stdout.buffer.flush()
    for pid in pipes:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _forked(job: Job, pipes: dict[int, int]) -> int:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the fork server
        signal.alarm(CHILD_S_MAX)
        for theirs in (0, 1, reading, *pipes.values()):
            os.close(theirs)
        try:
            perform(job, lambda said: os.write(writing, _line(said)))
        except BaseException as error:
            sys.stderr.write(f"{job}: {type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    os.close(writing)
    pipes[pid] = reading
    return pid


def _fate(pid: int, pipes: dict[int, int]) -> dict[str, Any]:
    _, status = os.waitpid(pid, os.WUNTRACED)
    fate: dict[str, Any] = {"state": "stopped", "struck": None, "crossings": [], "told": {}}
    if not os.WIFSTOPPED(status):
        with os.fdopen(pipes.pop(pid), "rb") as pipe:
            for line in pipe:
                fate.update(json.loads(line))
        fate["state"] = "killed" if os.WIFSIGNALED(status) else "ended"
    return fate


def _line(said: Any) -> bytes:
    return json.dumps(said).encode() + b"\n"
