"""Real relays and consumers in processes that are killed or stopped: a forked process for each job.

A child prints where it was struck, right before it is; and when it ends by itself, what it crossed and what happened
to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.jobs import Job, perform
from tests.chaos.places import Place
from tests.support.crash import Crossing
from tests.support.fork_server import Child, State, fork_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a child: where it was struck, what it crossed and what it was told of if it ended by itself."""

    pid: int
    state: State
    struck: Crossing | None
    crossings: list[Crossing]
    told: dict[str, int]


class JobProcesses:
    """Where they are forked; by their process ids."""

    def __init__(self) -> None:
        self._server = fork_server("import tests.chaos.job_processes")
        self._children: dict[int, Child] = {}

    def start(self, job: Job) -> int:
        """Fork a child that does this; its process id."""
        program = "from tests.chaos.job_processes import obey; obey()"
        child = self._server.start_with_pipes("-c", program, json.dumps(asdict(job)))
        self._children[child.pid] = child
        return child.pid

    def send(self, pid: int, number: signal.Signals) -> None:
        self._children[pid].send_signal(number)

    def wait(self, pid: int) -> Fate:
        """Returns when the child has ended, died or stopped."""
        child = self._children[pid]
        said: dict[str, Any] = {"struck": None, "crossings": [], "told": {}}
        if (state := child.wait_for_change()) != "stopped":
            assert child.stdout is not None
            for line in child.stdout:
                said.update(json.loads(line))
            self._children.pop(pid).close()
        struck = Crossing(*said["struck"]) if said["struck"] else None
        crossings = [Crossing(*crossing) for crossing in said["crossings"]]
        return Fate(pid=pid, state=state, struck=struck, crossings=crossings, told=said["told"])

    def run(self, job: Job) -> Fate:
        return self.wait(self.start(job))

    def end(self, pid: int, number: signal.Signals = signal.SIGTERM) -> Fate:
        self.send(pid, number)
        return self.wait(pid)

    def close(self) -> None:
        """No child is left."""
        for child in self._children.values():
            child.close()


# --- in the child --------------------------------------------------------------------------------------------


def obey() -> None:
    given = json.loads(sys.argv[1])
    job = Job(**{**given, "place": Place(**given["place"]), "at": tuple(given["at"])})
    try:
        perform(job, lambda said: print(json.dumps(said), flush=True))
    except BaseException as error:
        sys.stderr.write(f"{job}: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
