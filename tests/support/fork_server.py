"""Python processes without the start of an interpreter for each: a process with the libraries imported and a single
thread, that forks a child for each program.

To start an interpreter and import what a program needs takes up to a second of computing, and the tests start hundreds;
a fork takes milliseconds. The child has a directory, an environment, streams and arguments of its own, runs what
`python WORDS` would run (`-c PROGRAM`, `-m MODULE` or a file) as its `__main__`, and ends as an interpreter ends. Two
things differ: what the prelude imports is imported already, and a traceback has the frames of this module on top.
So a test of what is imported, or of options of the interpreter, starts a real one.

    fork server <- {"words": [...], "cwd": ..., "environment": {...}}    with the child's three descriptors
    fork server -> {"pid": ...}
    fork server <- {"wait": pid, "options": WUNTRACED}                   the answer comes when the child has changed
    fork server -> {"status": ...}
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

ROOT = Path(__file__).parents[2]
PACKET_BYTES_MAX = 1_000_000

#: A child that hangs is a bug that should show, not a test run that never ends.
CHILD_S_MAX = 600

#: What programs import besides onefold.
LIBRARIES = (
    "import asyncio, asyncpg, fastapi, flask, httpx, psycopg, psycopg_pool, pydantic, sqlite3, sqlalchemy, "
    "sqlalchemy.ext.asyncio, starlette.responses, uvicorn"
)
#: The same, and what onefold imports for its first name.
PROGRAMS = f"{LIBRARIES}; from onefold import AsyncOnefold, Onefold"

State: TypeAlias = Literal["ended", "killed", "stopped"]


@dataclass(slots=True)
class Child:
    """A forked process, by what a test needs of `subprocess.Popen`; and it can be seen to stop."""

    server: ForkServer
    words: Sequence[str]
    pid: int
    stdin: IO[str] | None = None
    stdout: IO[str] | None = None
    returncode: int | None = None
    _ended: int = field(init=False)

    def __post_init__(self) -> None:
        # It is the fork server's to reap, and not yet reaped: this is the child and no other process.
        self._ended = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Its exit code, once it has ended; negative is the number of a signal."""
        return self._reap(0.0)

    def wait(self, timeout: float = CHILD_S_MAX) -> int:
        if (code := self._reap(timeout)) is None:
            raise subprocess.TimeoutExpired(list(self.words), timeout)
        return code

    def wait_for_change(self) -> State:
        """Returns when it has ended, was killed or has stopped. It ends by its own alarm at the latest."""
        if self.returncode is None:
            status: int = self.server.ask({"wait": self.pid, "options": os.WUNTRACED})["status"]
            if os.WIFSTOPPED(status):
                return "stopped"
            self._end(status)
        return "killed" if (self.returncode or 0) < 0 else "ended"

    def communicate(self, said: str, timeout: float) -> str:
        """Say this, the last it hears, and wait for its end; what it has printed."""
        assert self.stdin is not None
        assert self.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            if not self.stdin.closed:
                self.stdin.write(said)
            self.stdin.close()
        self.wait(timeout)  # what it prints fits into the pipe
        return self.stdout.read()

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._ended, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self, timeout: float = CHILD_S_MAX) -> None:
        """Kill it, if it still runs; nothing of it is left."""
        self.kill()
        self.wait(timeout)
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.close()

    def _reap(self, within_s: float) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], within_s)[0]:
            self._end(self.server.ask({"wait": self.pid, "options": 0})["status"])
        return self.returncode

    def _end(self, status: int) -> None:
        os.close(self._ended)
        self.returncode = os.waitstatus_to_exitcode(status)


class ForkServer:
    """The parent's end."""

    def __init__(self, prelude: str) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = f"from tests.support.fork_server import serve; serve({theirs.fileno()}, {prelude!r})"
        path = [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        # -P: as for an installed script, the working directory is not importable by itself.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def start(
        self,
        *words: str,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        streams: Sequence[IO[Any]],
    ) -> Child:
        """`python WORDS` with these as its input, output and errors."""
        given = os.environ if environment is None else environment
        order = {"words": words, "cwd": str(cwd or Path.cwd()), "environment": dict(given)}
        return Child(self, words, self.ask(order, [stream.fileno() for stream in streams])["pid"])

    def start_with_pipes(self, *words: str, cwd: Path | None = None) -> Child:
        """The same; its `stdin` and `stdout` are pipes to it, and it writes its errors where the tests do."""
        (its_input, our_end), (our_other, its_output) = os.pipe(), os.pipe()
        with open(its_input) as asked, open(its_output, "w") as said, open(os.dup(2), "w") as wrong:
            child = self.start(*words, cwd=cwd, streams=(asked, said, wrong))
        child.stdin, child.stdout = open(our_end, "w", buffering=1), open(our_other)  # noqa: SIM115
        return child

    def run(
        self,
        *words: str,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        given: str = "",
        one_stream: bool = False,
        within_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """The same to its end. `one_stream`: its errors are part of its output, as in a terminal; whoever wants them
        in their places sets PYTHONUNBUFFERED."""
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as wrong:
            asked.write(given.encode())
            asked.seek(0)
            streams = (asked, said, said if one_stream else wrong)
            child = self.start(*words, cwd=cwd, environment=environment, streams=streams)
            try:
                code = child.wait(within_s)
            finally:
                child.close()
            for stream in (said, wrong):
                stream.seek(0)
            return subprocess.CompletedProcess(list(words), code, said.read().decode(), wrong.read().decode())

    def ask(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        socket.send_fds(self._line, [json.dumps(order).encode()], descriptors)
        answer: dict[str, Any] = json.loads(self._line.recv(PACKET_BYTES_MAX))
        return answer

    def end(self) -> None:
        self._line.close()  # the end of its orders is the end of it, and of its children
        self._process.wait()


@functools.cache
def fork_server(prelude: str = PROGRAMS) -> ForkServer:
    """This process's own, with that imported; it ends with this process."""
    made = ForkServer(prelude)
    atexit.register(made.end)
    return made


# --- in the fork server -------------------------------------------------------------------------------------------


def serve(descriptor: int, prelude: str) -> None:
    """Obey until the orders end. In each child: run what it was forked for."""
    _import_for_all(prelude)
    line = socket.socket(fileno=descriptor)
    while True:
        packet, descriptors, _, _ = socket.recv_fds(line, PACKET_BYTES_MAX, 3)
        if not packet:
            os._exit(0)
        order = json.loads(packet)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], order["options"])
            line.send(json.dumps({"status": status}).encode())
        elif pid := os.fork():
            for each in descriptors:
                os.close(each)
            line.send(json.dumps({"pid": pid}).encode())
        else:
            line.close()
            _dress(order, descriptors)
            return _run(*order["words"])


def _import_for_all(prelude: str) -> None:
    """What is imported here is not taken apart at the end of a child, which would take ten times as long as to fork
    it; what the child has imported and made by itself is."""
    before = set(sys.modules)
    imported: dict[str, object] = {}
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(imported))

    def forget() -> None:
        for name in imported:
            sys.modules.pop(name, None)

    atexit.register(forget)  # the first, and so the last to be called
    exec(prelude, {})
    imported.update((name, module) for name, module in sys.modules.items() if name not in before)
    gc.collect()
    gc.freeze()


def _dress(order: dict[str, Any], descriptors: Sequence[int]) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the fork server
    signal.alarm(CHILD_S_MAX)
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["cwd"])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in given if path and path not in sys.path]
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _run(what: str, *words: str) -> None:
    main = vars(sys.modules["__main__"])
    del main["serve"]
    match what, words:
        case "-c", (program, *arguments):
            sys.argv = ["-c", *arguments]
            exec(compile(program, "<string>", "exec"), main)
        case "-m", (module, *arguments):
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case file, arguments:
            sys.argv = [file, *arguments]
            sys.path.insert(0, str(Path(file).resolve().parent))
            main["__file__"] = file
            exec(compile(Path(file).read_text(), file, "exec"), main)
