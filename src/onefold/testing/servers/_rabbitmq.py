"""Private RabbitMQ servers, from Debian's package: no wheel carries one, and no service is needed.

Invariant: a persistent message in a durable classic queue, once confirmed, is there after `kill` and `restart`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onefold.testing.fault_proxy import HOST
from onefold.testing.servers._process import (
    Launch,
    PrivateServer,
    ServerUnavailable,
    converse,
    hand_over,
    unprivileged_account,
    write_secret,
)

# Not the one in /usr/sbin: that insists on root, and on becoming the user rabbitmq.
_PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_EPMD: Final = Path("/usr/bin/epmd")
_POLICY: Final = Path("/usr/sbin/policy-rc.d")
_POLICY_DENIES: Final = 101
_AMQP_0_9_1: Final = b"AMQP\x00\x00\x09\x01"
_FRAME_END: Final = b"\xce"
# Not guest, which every client tries by itself.
_USER: Final = "onefold"


class PrivateRabbitmq(PrivateServer):
    """One RabbitMQ node of your own: `with PrivateRabbitmq() as server: await aio_pika.connect(server.url)`.

    It takes four seconds to start. A quorum queue that is killed in the seconds after its declaration is lost for
    good, which is RabbitMQ's doing: call `restart` once between the declaration and the first `kill`.
    """

    def __init__(self) -> None:
        super().__init__(ports=3)  # AMQP, Erlang's distribution, and the port mapper that it cannot do without

    @property
    def url(self) -> str:
        """Its address, password included."""
        return f"amqp://{_USER}:{self._password}@{HOST}:{self.port}/"

    def _furnish(self) -> None:
        data = self.directory / "data"
        data.mkdir(mode=0o700)  # From the settings RabbitMQ generates others, which all could read.
        write_secret(data / "rabbitmq.conf", f"default_user = {_USER}\ndefault_pass = {self._password}\n")
        (data / "plugins").write_text("[].\n")
        (data / ".erlang.cookie").write_text(secrets.token_hex(16))
        (data / ".erlang.cookie").chmod(0o400)
        hand_over(data)

    def _launch(self) -> Launch:
        if missing := [path for path in (_PROGRAM, _EPMD) if not path.exists()]:
            raise ServerUnavailable(
                f"no RabbitMQ: {missing[0]} is not there; the way out, on Debian and as root, is "
                "`onefold.testing.servers.install_rabbitmq()`"
            )
        data, (amqp, distribution, mapper) = self.directory / "data", self.ports
        environment = {
            "HOME": str(data),
            "LC_ALL": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # The script then becomes the server, where else it would be its parent.
            "ERL_CRASH_DUMP_BYTES": "0",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(mapper),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(data / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(data / "plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(data),
            "RABBITMQ_MNESIA_BASE": str(data),
            "RABBITMQ_NODENAME": f"{self.directory.name}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(amqp),
            # Two schedulers that sleep when there is nothing to do: a test's server shares the machine.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 2:2 +sbwt none -kernel inet_dist_use_interface {" + HOST.replace(".", ",") + "}"
            ),
        }
        return Launch(
            command=[str(_PROGRAM)],
            # One of our own, in the foreground: the one that Erlang starts is a daemon that stays for ever.
            companion=[str(_EPMD), "-address", HOST, "-port", str(mapper)],
            environment=environment,
            account=unprivileged_account(),
        )

    def _answer(self) -> str | None:
        # It listens when its queues are recovered, and its greeting carries the name of the node.
        greeting = converse(self.port, _AMQP_0_9_1, _FRAME_END)
        return None if self.directory.name.encode() in greeting else f"it greets with {greeting[:80]!r}"


def install_rabbitmq() -> None:
    """Have apt install Debian's RabbitMQ without starting its service. It changes the machine, so call it on purpose.

    Does nothing where it is installed; raises `ServerUnavailable` where it cannot be.
    """
    if _PROGRAM.exists():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServerUnavailable("RabbitMQ cannot be installed: that takes Debian's apt-get, and root")
    with _no_service_is_started():
        for arguments in (["update"], ["install", "--yes", "--no-install-recommends", "rabbitmq-server"]):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            command = ["apt-get", "--quiet", *arguments]
            ran = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if ran.returncode:
                raise ServerUnavailable(f"`{' '.join(command)}` exited with {ran.returncode}\n{ran.stderr[-2000:]}")


@contextlib.contextmanager
def _no_service_is_started() -> Iterator[None]:
    """Debian starts what it installs, unless this file says no. One that is there is not ours to change."""
    if _POLICY.exists():
        if subprocess.run([_POLICY, "rabbitmq-server", "start"], check=False).returncode != _POLICY_DENIES:
            raise ServerUnavailable(
                f"{_POLICY} would let apt start RabbitMQ's service; install rabbitmq-server yourself"
            )
        yield
        return
    _POLICY.write_text(f"#!/bin/sh\nexit {_POLICY_DENIES}\n")
    try:
        _POLICY.chmod(0o755)
        yield
    finally:
        _POLICY.unlink()
