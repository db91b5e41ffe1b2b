"""A private server process: its directory, its ports, its start, its death and its end. What each server says of
itself is in its own module; what happens to all of them alike is here.

Invariant: from `start` to `stop` a server has the same directory and the same ports, and no other process is given
them; after `stop`, or the end of the process that called `start`, nothing is left (`keeper` sees to that). Linux only.
"""

from __future__ import annotations

import atexit
import contextlib
import fnmatch
import functools
import importlib.metadata
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from onefold.errors import OnefoldError, ProgrammerError
from onefold.testing.fault_proxy import HOST, reserve_port
from onefold.testing.servers import _keeper

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 10.0
ANSWER_S_MAX: Final = 5.0
_KEEPER: Final = str(Path(_keeper.__file__).resolve())


class ServerUnavailable(OnefoldError):
    """This machine cannot run such a server; a test may skip, visibly. The message says what would help."""


class ServerFailed(OnefoldError):
    """A server did not start, or refused a statement. Carries the end of its log where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How one server is run.

    `companion` is run beside it and ends with it. The server gets `stop_signal` to shut down, and `orphan_signal` from
    the kernel should its keeper be killed.
    """

    command: Sequence[str]
    companion: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    account: tuple[int, int] | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    orphan_signal: signal.Signals = signal.SIGKILL


class PrivateServer:
    """What every private server can do. Its module says how it is furnished, launched, and known to be ready.

    It has so many `ports`, which are the same from `start` to `stop`; while the server is down, connecting is refused.
    """

    def __init__(self, *, ports: int = 1) -> None:
        self._ports_wanted = ports
        self._home: _Home | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        # Loopback is open to every account of the machine, so each server wants a password, which is in its address.
        # It reaches the server in a file, by `write_secret`: every user can read command lines, and so a keeper's.
        self._password = secrets.token_hex(16)

    # What a server's module says of it

    def _furnish(self) -> None:
        """Put into the new directory what the server needs there."""

    def _launch(self) -> Launch:
        """How to run it, now that it has a directory and ports."""
        raise NotImplementedError

    def _answer(self) -> str | None:
        """Ask the server; None when it is ready, else what is wrong. An OSError is an answer too."""
        raise NotImplementedError

    # What they have in common

    def start(self) -> Self:
        """Start on empty data and ports of its own; returns once the server answers."""
        if self._home is not None:
            raise ProgrammerError(f"the server on port {self.port} is started; call restart() or stop()")
        owner = os.getpid()
        directory = new_directory(shared_root(owner), f"{type(self).__name__.lower()}-")
        self._home = _Home(owner, directory, tuple(reserve_port() for _ in range(self._ports_wanted)))
        atexit.register(self.stop)
        try:
            self._furnish()
            self._run()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Kill the server and remove its data. Does nothing when there is nothing to stop."""
        home = self._home
        if home is None or home.owner != os.getpid():  # A fork of the owner has nothing to stop.
            return
        self.kill()  # an orderly shutdown would write to disk, for a minute at times, what is deleted next
        self._home = None
        for placeholder in home.placeholders:
            placeholder.close()
        shutil.rmtree(home.directory, ignore_errors=True)
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """SIGKILL the server and every process of it; returns when the last one is gone. The directory stays."""
        if self._started.owner != os.getpid():
            raise ProgrammerError(f"only process {self._started.owner}, which started this server, can kill it")
        if self._keeper is not None:
            self._keeper.terminate()
            self._keeper.wait()
            self._keeper = None

    def restart(self) -> None:
        """Start again on the same directory and ports: by crash recovery after `kill`, else after a shutdown."""
        self._shut_down()
        self._run()

    def logs(self, lines: int = 40) -> str:
        """The end of the server's log."""
        return tail(self.directory, lines)

    @property
    def port(self) -> int:
        """The first of them."""
        return self.ports[0]

    @property
    def ports(self) -> tuple[int, ...]:
        """On loopback, from `start` on."""
        return tuple(int(placeholder.getsockname()[1]) for placeholder in self._started.placeholders)

    @property
    def pid(self) -> int:
        """The process id of the server itself: of PostgreSQL, the postmaster."""
        if self._keeper is None or self._keeper.poll() is not None:
            raise ProgrammerError("this server is not running; call start(), or restart() after kill()")
        return self._pid

    @property
    def directory(self) -> Path:
        """Where this server keeps its data and its log; gone after `stop`."""
        return self._started.directory

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _started(self) -> _Home:
        if self._home is None:
            raise ProgrammerError("this server is not started; call start(), or use it in a `with`")
        return self._home

    def _run(self) -> None:
        pid = self.directory / "pid"
        pid.unlink(missing_ok=True)
        self._keeper = start_keeper(self.directory, self._launch())
        deadline = time.monotonic() + START_S_MAX
        while True:
            ended = self._keeper.poll()
            try:
                problem = self._answer()
            except OSError as refusal:
                problem = str(refusal)
            if ended is None and problem is None and pid.exists():
                self._pid = int(pid.read_text())
                return
            if ended is not None or time.monotonic() > deadline:
                self.kill()
                why = problem if ended is None else f"it exited with {ended}"
                raise ServerFailed(f"{self} on port {self.port} did not start: {why}\n{self.logs()}")
            time.sleep(0.01)

    def _shut_down(self) -> None:
        """Ask it to, then make sure."""
        if self._keeper is not None:
            self._keeper.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(STOP_S_MAX)
            self.kill()

    def __str__(self) -> str:
        return type(self).__name__


@dataclass(frozen=True, slots=True)
class _Home:
    """Where one server lives from `start` to `stop`."""

    owner: int
    directory: Path
    placeholders: tuple[socket.socket, ...]


def start_keeper(directory: Path, launch: Launch | None) -> subprocess.Popen[bytes]:
    """A keeper for this directory and for what is launched in it; its exit code is that of the command."""
    orders = _keeper.Orders(owner=os.getpid(), directory=str(directory))
    if launch is not None:
        orders["command"] = list(launch.command)
        orders["companion"] = list(launch.companion)
        orders["environment"] = dict(launch.environment)
        orders["stop_signal"] = launch.stop_signal
        orders["orphan_signal"] = launch.orphan_signal
        if launch.account is not None:
            orders["account"] = launch.account
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", _KEEPER, json.dumps(orders)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


@functools.cache
def shared_root(owner: int) -> Path:
    """The directory of everything one process asks for; a fork has an id of its own, and so its own root."""
    root = new_directory(None, "onefold-servers-")
    if unprivileged_account() is not None and not readable_by_all(root):
        root.rmdir()
        raise ServerUnavailable(f"the user nobody may not enter {root.parent}; set TMPDIR to where it may")
    with contextlib.suppress(FileNotFoundError):
        # ext4 shuns inodes it freed minutes ago, one by one: told to spread our folders, it copies ten times as fast.
        subprocess.run(["chattr", "+T", root], stderr=subprocess.DEVNULL, check=False)
    guard = start_keeper(root, None)

    def clean_up() -> None:
        if os.getpid() == owner:
            guard.terminate()
            guard.wait()
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(clean_up)
    return root


def new_directory(parent: Path | None, prefix: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    directory.chmod(0o700 if unprivileged_account() is None else 0o755)
    return directory


def unprivileged_account() -> tuple[int, int] | None:
    """Who a server that refuses root (PostgreSQL), or would keep its habits (RabbitMQ), runs as: root's as `nobody`."""
    nobody = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    return (nobody.pw_uid, nobody.pw_gid) if nobody else None


def hand_over(tree: Path) -> None:
    """Give a tree to the unprivileged account."""
    if (account := unprivileged_account()) is not None:
        for path in (tree, *tree.rglob("*")):
            os.chown(path, *account, follow_symlinks=False)


def write_secret(file: Path, text: str) -> None:
    """For the account that the server runs as, and no other, from the first byte."""
    file.touch(mode=0o600)
    file.write_text(text)


def readable_by_all(tree: Path) -> bool:
    reached = all(folder.stat().st_mode & 0o001 for folder in (tree, *tree.parents))
    return reached and all(path.stat().st_mode & 0o004 for path in tree.rglob("*"))


def tail(directory: Path, lines: int) -> str:
    return "\n".join((directory / "log").read_text(errors="replace").splitlines()[-lines:])


def file_of_wheel(wheel: str, pattern: str) -> Path | None:
    """Where an installed wheel put this file. It is not imported: what it would do then is its own idea, not ours."""
    try:
        distribution = importlib.metadata.distribution(wheel)
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        path = Path(str(distribution.locate_file(file)))
        if fnmatch.fnmatch(file.name, pattern) and path.is_file():
            return path.resolve()
    return None


def find_program(*sources: tuple[str, str]) -> Path:
    """The first of these (wheel, program) that is installed, else the first such program on the PATH."""
    for wheel, program in sources:
        if found := file_of_wheel(wheel, program):
            return found
    for _, program in sources:
        if on_path := shutil.which(program):
            return Path(on_path).resolve()
    wheel, program = sources[0]
    raise ServerUnavailable(
        f"no {program}: neither the wheel {wheel} nor a system server is there; "
        "the way out is `pip install onefold[servers]`"
    )


def converse(port: int, question: bytes, ending: bytes | None) -> bytes:
    """Say something to the server on this port and read its answer up to `ending`, or to where it stops."""
    with socket.create_connection((HOST, port), ANSWER_S_MAX) as connection:
        connection.sendall(question)
        answer = b""
        while (ending is None or ending not in answer) and (chunk := connection.recv(65_536)):
            answer += chunk
        return answer


def get(port: int, path: str) -> str:
    """The body of what the server on this port answers to an HTTP GET with 200, else nothing."""
    return _request(port, f"GET {path} HTTP/1.1", "")


def post(port: int, path: str, body: str) -> str:
    """The same of a POST of JSON."""
    return _request(port, f"POST {path} HTTP/1.1\r\nContent-Type: application/json", body)


def _request(port: int, question: str, body: str) -> str:
    length = len(body.encode())
    request = f"{question}\r\nHost: {HOST}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    head, _, answer = converse(port, request.encode(), None).decode(errors="replace").partition("\r\n\r\n")
    return answer if head.startswith("HTTP/1.1 200") else ""
