"""What the tests of private servers look at: processes, of this machine and by their ids."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.support.patience import PATIENCE_S

NOBODY = 65_534
AS_ROOT = os.geteuid() == 0


def ends(pid: int) -> bool:
    """Whether the process is gone, or goes before our patience does."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], PATIENCE_S)[0])
    finally:
        os.close(handle)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def family(server: int) -> list[int]:
    """The keeper, the server, and every living process that either started."""
    keeper = parent(server)
    return [keeper, server, *(pid for pid in descendants(keeper) if pid != server and is_alive(pid))]


def users(pids: Iterable[int]) -> set[int]:
    """Who they run as. One that has ended meanwhile ran as nobody we could ask about."""
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError):
            found.add(Path(f"/proc/{pid}").stat().st_uid)
    return found


def mentioning(directory: Path) -> list[str]:
    """The processes whose command or environment names this directory: by the listing, not by what we remember."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            said = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        if str(directory).encode() in said:
            found.append(process.name)
    return found


def run(script: str, *, user: int | None = None, python: str = sys.executable) -> subprocess.Popen[str]:
    """Another process that uses private servers."""
    return subprocess.Popen(
        [python, "-B", "-c", f"from onefold.testing.servers import *\n{script}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
