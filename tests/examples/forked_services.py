"""The shop's processes without the start of an interpreter for each, which takes most of a small demo's computing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from tests.support.fork_server import ROOT, Child, fork_server

#: What the services import besides themselves, whose settings are read when they are imported.
LIBRARIES = (
    "import dbos, fastapi, httpx, nats, prometheus_client, restate, uvicorn\n"
    "import onefold._cli.commands, onefold._cli.consume, onefold._cli.relay\n"
    "import onefold.brokers.nats, onefold.db.asyncpg, onefold.fastapi, onefold.prometheus\n"
    "import onefold.sagas.dbos, onefold.sagas.restate"
)


def fork_service(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Child:
    """A process of the shop, forked."""
    words = command[1:] if command[0] == sys.executable else command
    with open(os.devnull) as nothing:
        return fork_server(LIBRARIES).start(*words, cwd=ROOT, environment=environment, streams=(nothing, log, log))
