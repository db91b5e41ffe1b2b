"""The processes of a round: servers that stay, a load generator that comes and goes, and what each used of the CPU.

Invariant: a server ends with the `with` that started it, also when the bench dies: its standard input ends then.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.load import Load
from onefold._kernel.public_drivers import PUBLIC_ONLY

STOP_S_MAX: Final = 10.0

_ROOT: Final = Path(__file__).parents[1]  # where `-m benchmarks...` is found

_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server process that answers."""

    port: int
    pid: int


@contextlib.contextmanager
def a_core_to_itself() -> Iterator[int | None]:
    """A core for the worker alone, which is told by its number; whatever else is started meanwhile keeps to the others.

    Who shares a core with whom is the scheduler's choice, and a different one every time: that alone makes a worker a
    fifth faster or slower. None: there is one core only, or this is not Linux.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if len(cores) < 2:
        yield None
        return
    own = max(cores)  # the first one usually serves the interrupts of the disk
    os.sched_setaffinity(0, cores - {own})
    try:
        yield own
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def serving(
    application: str, place: str, *, pool_size: int, core: int | None, public: bool = False
) -> Iterator[Served]:
    """A server. With `public` its driver is used by its public API alone."""
    command = [sys.executable, "-m", "benchmarks.serve", application, place, "--pool", str(pool_size)]
    if core is not None:
        command += ["--core", str(core)]
    environment = {**os.environ, PUBLIC_ONLY: "1" if public else "0"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            if not said:
                raise SystemExit(f"the server {application} did not start; it says above why")
            yield Served(port=int(said), pid=process.pid)
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def run_load(port: int, *arguments: str) -> Load:
    """One round of load, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.load", str(port), *arguments]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=_ROOT)
    if ran.returncode:
        raise SystemExit(f"the load generator failed with {ran.returncode}; it says above why")
    return Load(**json.loads(ran.stdout))


def cpu_s(pid: int) -> float:
    """What a process and its threads have used so far; 0 where there is no /proc to tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def children_cpu_s(parent: int) -> float:
    """What the living children of a process have used so far: the backends of a postmaster."""
    used = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # a process may end while we look
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                used += (int(fields[11]) + int(fields[12])) * _TICK_S
    return used
