"""Commands in processes of their own without the start of an interpreter for each: a small process, the command line
imported, single-threaded, that forks a child for each command.

Starting one takes most of a second of computing, and there are hundreds; a fork takes a few milliseconds. The child
has its own directory, environment, input and output, and ends as an interpreter ends.

    fork server <- {"words": [...], "cwd": ..., "environment": {...}}    with its three descriptors; one packet per
    command fork server <- {"reap": pid}                                         once the child has ended fork server ->
    {"pid": ...} or {"status": ...}
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
PACKET_BYTES_MAX = 1_000_000

#: A child that hangs is a bug that should show, not a test run that never ends.
CHILD_S_MAX = 600


@dataclass(slots=True)
class Command:
    """A child, by what a test needs of `subprocess.Popen`."""

    fork_server: ForkServer
    pid: int
    returncode: int | None = None
    _ended: int = field(init=False)

    def __post_init__(self) -> None:
        # It is the fork server's to reap, and not yet reaped: this is the child and no other process.
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Its exit code, once it has ended; negative is the number of a signal."""
        return self._reaped(0.0)

    def wait(self, timeout: float) -> int:
        if (code := self._reaped(timeout)) is None:
            raise subprocess.TimeoutExpired("onefold", timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reaped(self, within_s: float) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], within_s)[0]:
            os.close(self._ended)
            self.returncode = os.waitstatus_to_exitcode(self.fork_server.told({"reap": self.pid})["status"])
        return self.returncode


class ForkServer:
    """The parent's end."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = (
            f"from tests.cli.fork_server import become; become({theirs.fileno()}); "
            "from onefold._cli import main; main()"
        )
        # -P: as for the installed script, the working directory is not importable by itself.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *_given_path()])},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(
        self, words: Sequence[str], *, cwd: Path | None, environment: Mapping[str, str], streams: Sequence[IO[Any]]
    ) -> Command:
        """`onefold WORDS` with these as its input, output and errors."""
        told = {"words": words, "cwd": str(cwd or Path.cwd()), "environment": dict(environment)}
        return Command(self, self.told(told, [stream.fileno() for stream in streams])["pid"])

    def run(
        self, words: Sequence[str], *, cwd: Path | None, environment: Mapping[str, str], given: str, within_s: float
    ) -> subprocess.CompletedProcess[str]:
        """The same to its end."""
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as wrong:
            asked.write(given.encode())
            asked.seek(0)
            child = self.start(words, cwd=cwd, environment=environment, streams=(asked, said, wrong))
            try:
                code = child.wait(within_s)
            finally:
                child.kill()
            for stream in (said, wrong):
                stream.seek(0)
            return subprocess.CompletedProcess(list(words), code, said.read().decode(), wrong.read().decode())

    def told(self, said: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        socket.send_fds(self._line, [json.dumps(said).encode()], descriptors)
        answer: dict[str, Any] = json.loads(self._line.recv(PACKET_BYTES_MAX))
        return answer

    def end(self) -> None:
        self._line.close()  # the end of its orders is the end of it, and of its children
        self._process.wait()


def _given_path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]


@functools.cache
def fork_server() -> ForkServer:
    """This process's own."""
    made = ForkServer()
    atexit.register(made.end)
    return made


# --- in the fork server -------------------------------------------------------------------------------------------


def become(descriptor: int) -> None:
    """Obey until the orders end. Returns in each child, which then is the command it was forked for."""
    from onefold._cli.app import assemble
    from onefold.db import sqlite  # noqa: F401

    with contextlib.redirect_stdout(io.StringIO()):
        assemble([])(["--version"], standalone_mode=False)  # typer imports the most when it first reads words
    line = socket.socket(fileno=descriptor)
    while True:
        said, descriptors, _, _ = socket.recv_fds(line, PACKET_BYTES_MAX, 3)
        if not said:
            os._exit(0)
        told = json.loads(said)
        if "reap" in told:
            _, status = os.waitpid(told["reap"], 0)
            line.send(json.dumps({"status": status}).encode())
        elif pid := os.fork():
            for each in descriptors:
                os.close(each)
            line.send(json.dumps({"pid": pid}).encode())
        else:
            line.close()
            _dress(told, descriptors)
            return


def _dress(told: dict[str, Any], descriptors: Sequence[int]) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the fork server
    signal.alarm(CHILD_S_MAX)
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["cwd"])
    sys.argv[1:] = told["words"]
