"""Programs that no wheel brings, from Debian's packages, without starting their services. For tests only."""

from __future__ import annotations

import os
import shutil
import subprocess

from onefold.testing.servers import ServerUnavailable
from onefold.testing.servers._rabbitmq import _no_service_is_started


def install_package(name: str) -> None:
    """Have apt install it, where the program of its name is not there."""
    if shutil.which(name) is not None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServerUnavailable(f"{name} cannot be installed: that takes Debian's apt-get, and root")
    with _no_service_is_started():
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", name]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "--quiet", *arguments], env=environment, stdin=subprocess.DEVNULL, check=True)
