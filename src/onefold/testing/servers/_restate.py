"""Private Restate servers, from the npm package: no wheel carries one. The server's licence is BSL 1.1.

Invariant: what Restate has journalled is there after `kill` and `restart`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from onefold.testing.fault_proxy import HOST
from onefold.testing.servers._process import Launch, PrivateServer, ServerUnavailable, get, post

_PACKAGE: Final = "@restatedev/restate-server"
_VERSION: Final = "1.7.12"
_INSTALL_S_MAX: Final = 600
# By npm's names. A package of their own carries the program for each.
_MACHINES: Final = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
# The defaults are those of a server that has a machine to itself: 24 partitions, 2 GiB for RocksDB and telemetry.
_SETTINGS: Final = """\
cluster-name = "{name}"
node-name = "{name}"
base-dir = "{data}"
bind-ip = "{host}"
bind-port = {node}
advertised-host = "{host}"
listen-mode = "tcp"
default-num-partitions = 2
disable-telemetry = true
rocksdb-total-memory-size = "128.0 MiB"
log-filter = "warn"
log-disable-ansi-codes = true
shutdown-timeout = "5s"

[ingress]
bind-port = {ingress}

[admin]
bind-port = {admin}
disable-web-ui = true

[admin.query-engine]
memory-size = "64.0 MiB"

[worker.invoker]
memory-limit = "128.0 MiB"

[bifrost]
record-cache-memory-size = "16.0 MiB"
"""


_COUNT: Final = '{"query": "SELECT COUNT(*) AS found FROM sys_invocation"}'


class PrivateRestate(PrivateServer):
    """One Restate server of your own: `with PrivateRestate() as server: Restate(server.ingress, server.admin, ...)`.

    Restate has no passwords: every account of this machine can reach it, as it can the mock Kafka.
    """

    def __init__(self) -> None:
        super().__init__(ports=3)  # ingress, admin, and the port of the node, which a cluster of one has as well

    @property
    def ingress(self) -> str:
        """Where invocations are sent."""
        return f"http://{HOST}:{self.ports[0]}"

    @property
    def admin(self) -> str:
        """Where deployments are registered, and invocations are listed and cancelled."""
        return f"http://{HOST}:{self.ports[1]}"

    def _furnish(self) -> None:
        ingress, admin, node = self.ports
        settings = _SETTINGS.format(
            name=self.directory.name,
            data=self.directory / "data",
            host=HOST,
            node=node,
            ingress=ingress,
            admin=admin,
        )
        (self.directory / "restate.toml").write_text(settings)

    def _launch(self) -> Launch:
        return Launch(
            command=[str(_find_program()), "--no-logo", "--config-file", str(self.directory / "restate.toml")],
            environment={"DO_NOT_TRACK": "1", "HOME": str(self.directory)},
        )

    def _answer(self) -> str | None:
        ingress, admin, _ = self.ports
        health = get(admin, "/cluster-health")
        if json.loads(health or "{}").get("cluster_name") != self.directory.name:
            return f"its admin API answers {health[:80]!r}"
        if not get(ingress, "/restate/health"):
            return "its ingress is not ready"
        # Each partition opens its store by itself, and last.
        return None if post(admin, "/query", _COUNT) else "its partitions are not ready"


def install_restate() -> None:
    """Have npm put Restate's server into this virtual environment. No script of a package is run: one of them reports
    the installation to its maker.

    Does nothing where it is installed; raises `ServerUnavailable` where it cannot be.
    """
    if _program().is_file():
        return
    if sys.prefix == sys.base_prefix:
        raise ServerUnavailable("Restate cannot be installed: it goes into a virtual environment, and there is none")
    npm = shutil.which("npm")
    if npm is None or platform.machine() not in _MACHINES:
        raise ServerUnavailable("Restate cannot be installed: that takes npm, on x86-64 or ARM64")
    home = _home()
    home.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(home)]
    ran = subprocess.run(
        [*command, f"{_PACKAGE}@{_VERSION}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=_INSTALL_S_MAX,
    )
    if ran.returncode:
        raise ServerUnavailable(f"`{' '.join(command)}` exited with {ran.returncode}\n{ran.stderr[-2000:]}")


def _find_program() -> Path:
    """What `install_restate` installed, else one on the PATH."""
    installed = _program()
    if installed.is_file() and os.access(installed, os.X_OK):
        return installed
    if on_path := shutil.which("restate-server"):
        return Path(on_path).resolve()
    raise ServerUnavailable(
        f"no Restate: {installed} is not there; the way out, where npm is, is "
        "`onefold.testing.servers.install_restate()`"
    )


def _program() -> Path:
    package = f"{_PACKAGE}-{_MACHINES.get(platform.machine(), 'unknown')}"
    return _home() / "node_modules" / package / "bin" / "restate-server"


def _home() -> Path:
    return Path(sys.prefix) / "share" / "onefold" / f"restate-{_VERSION}"
