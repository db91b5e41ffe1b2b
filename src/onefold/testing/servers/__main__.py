"""Private servers for a program to run beside: `python -m onefold.testing.servers postgres nats -- uvicorn app:app`.

The program finds them by ONEFOLD_DATABASE and ONEFOLD_BROKER, which the commands of onefold read as well. Without a
program their addresses are printed, and they stay until Ctrl-C. What they keep is gone with them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final, TypeAlias

from onefold.errors import OnefoldError
from onefold.testing.servers import (
    PrivateKafka,
    PrivateNats,
    PrivatePostgres,
    PrivateRabbitmq,
    PrivateValkey,
)

_Named: TypeAlias = PrivatePostgres | PrivateNats | PrivateValkey | PrivateRabbitmq | PrivateKafka

_SERVERS: Final[Mapping[str, Callable[[], _Named]]] = {
    "postgres": PrivatePostgres,
    "nats": PrivateNats,
    "redis": PrivateValkey,
    "rabbitmq": PrivateRabbitmq,
    "kafka": PrivateKafka,
}

_USAGE: Final = f"""\
usage: python -m onefold.testing.servers SERVER... [-- COMMAND...]

Private servers of {", ".join(_SERVERS)} (one broker at the most); what they keep is gone with them.

COMMAND runs beside them, and its exit code is passed on:
  python -m onefold.testing.servers postgres nats -- uvicorn app:app
Without one, `export` lines for a shell are printed, and the servers stay until Ctrl-C.

variables that are set:
  ONEFOLD_DATABASE  the address of postgres
  ONEFOLD_BROKER    the address of the broker
"""


def run(words: Sequence[str]) -> int:
    """Start the servers that are named, then the program after `--`; its exit code."""
    names, program = list(words), []
    if "--" in names:
        at = names.index("--")
        names, program = names[:at], names[at + 1 :]
    if {"--help", "-h"} & set(names):
        print(_USAGE, end="")
        return 0
    unknown = [name for name in names if name not in _SERVERS]
    if unknown or not names:
        return _refuse(f"{', '.join(unknown) or 'no server'}: name servers of {', '.join(_SERVERS)}")
    if len(set(names) - {"postgres"}) > 1:
        return _refuse(f"{', '.join(names)}: name one broker at the most, as ONEFOLD_BROKER is one address")
    with ExitStack() as started:
        try:
            addresses = dict(_start(name, started) for name in dict.fromkeys(names))
        except OnefoldError as error:
            return _refuse(str(error))
        if program:
            return _run_program(program, addresses)
        ends = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # one that comes now is waited for, and ends the servers, too
        for name, address in addresses.items():
            print(f"export {name}={address}", flush=True)
        print("Running until Ctrl-C; with `-- COMMAND` they run for as long as the command does.", file=sys.stderr)
        signal.sigwait(ends)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    return 0


def _start(name: str, started: ExitStack) -> tuple[str, str]:
    """The variable that has its address, and the address."""
    server = _SERVERS[name]()
    started.enter_context(server)
    if isinstance(server, PrivateKafka):
        return "ONEFOLD_BROKER", f"kafka://{server.bootstrap}"
    return "ONEFOLD_DATABASE" if name == "postgres" else "ONEFOLD_BROKER", server.url


def _run_program(program: Sequence[str], addresses: Mapping[str, str]) -> int:
    try:
        child = subprocess.Popen(program, env=os.environ | dict(addresses))
    except OSError as error:
        return _refuse(f"{program[0]!r} cannot be started: {error.strerror}")
    # Ctrl-C reaches the program by itself, as it is of the same group; what ends this process is passed on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    code = child.wait()
    return 128 - code if code < 0 else code


def _refuse(text: str) -> int:
    print(f"onefold.testing.servers: {text}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
