"""The keeper: the small process between a private server and the process that started it.

Invariant: nothing of a server outlives its owner, however the owner ends: no process, no directory, no shared memory.

Theory of operation. A test process cannot clean up after its own SIGKILL. So each server runs under a process in a
session of its own, its *keeper*, which watches the owner: when the owner ends, it kills the server, removes the
directory, and ends. Should the keeper itself be killed, the kernel signals the server (PR_SET_PDEATHSIG). That fires
at the end of the *thread* that forked, so the owner, which may start a server from any thread, cannot be the parent.
The keeper is also a child subreaper: the children of a dead server become its own, so it misses none. A keeper
without a command guards a directory.

This file is run as a program, with nothing of onefold: a bare interpreter is up in a fraction of the time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVENTS: Final = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None)


class Orders(TypedDict):
    """The orders of a keeper at its start. Later a SIGTERM has it kill its server, a SIGINT shut it down."""

    owner: int
    directory: str
    account: NotRequired[tuple[int, int]]
    environment: NotRequired[dict[str, str]]
    command: NotRequired[list[str]]
    companion: NotRequired[list[str]]
    stop_signal: NotRequired[int]
    orphan_signal: NotRequired[int]


def keep(orders: Orders) -> int:
    """Run the server until it ends, the owner ends, or the owner wants it killed; returns the exit code."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, _EVENTS)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # An owner that ignores it would make us lose exit codes.
    if companion := orders.get("companion"):
        _start(companion, orders, signal.SIGKILL)
    command = orders.get("command")
    server = _start(command, orders, orders.get("orphan_signal", signal.SIGKILL)) if command else None
    if server:
        _say_pid(Path(orders["directory"], "pid"), server.pid)
    while os.getppid() == orders["owner"] and (server is None or server.poll() is None):
        event = signal.sigtimedwait(_EVENTS, 0.2)
        _bury_orphans(server.pid if server else None)
        if event and event.si_signo == signal.SIGTERM:
            break
        if event and event.si_signo == signal.SIGINT and server:
            server.send_signal(orders.get("stop_signal", signal.SIGTERM))
    _kill_children()
    if server:
        _remove_shared_memory(server.pid)
    if os.getppid() != orders["owner"]:
        _remove_directory(orders["directory"])
    return server.returncode if server and server.returncode else 0


def _start(command: Sequence[str], orders: Orders, orphan_signal: int) -> subprocess.Popen[bytes]:
    def follow() -> None:
        # Only now, as the change of user clears it.
        _LIBC.prctl(_PR_SET_PDEATHSIG, orphan_signal, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _EVENTS)

    account = orders.get("account")
    uid, gid = account or (None, None)
    groups: list[str | int] | None = [] if account else None
    # A clean environment: a PGDATA, ERL_FLAGS or LANG of the owner must not reach the server.
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", **orders.get("environment", {})}
    return subprocess.Popen(command, env=env, user=uid, group=gid, extra_groups=groups, preexec_fn=follow)


def _say_pid(file: Path, pid: int) -> None:
    """In one step: a reader of the file finds the whole number."""
    draft = file.with_suffix(".draft")
    draft.write_text(str(pid))
    draft.rename(file)


def _bury_orphans(server: int | None) -> None:
    """Let go of what the server started, left to us and has ended. How the server itself ended is for `poll` to see."""
    with contextlib.suppress(ChildProcessError):
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while (ended := os.waitid(os.P_ALL, 0, look)) is not None and ended.si_pid != server:
            os.waitpid(ended.si_pid, 0)


def _kill_children() -> None:
    """First the server, if it is left; then its children, which are ours now.

    A busy backend of PostgreSQL would outlive its postmaster and hold the shared memory, and no server could start on
    the data.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            os.wait()


def _remove_shared_memory(creator: int) -> None:
    """A killed postmaster leaves behind the small segment that guards its data directory."""
    for segment in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        if segment.split()[4] == str(creator):
            _LIBC.shmctl(int(segment.split()[1]), 0, None)


def _remove_directory(directory: str) -> None:
    signal.alarm(10)
    while os.path.exists(directory):
        # Again and again: the guard of the whole may be here while a server in it is still being killed.
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(keep(json.loads(sys.argv[1])))
