"""A process to be killed or stopped: it serves one whole request, then gets stuck in the middle of another.

Run as `python -m tests.contract.victim BACKEND ADDRESS LEASE_S BEFORE_OR_AFTER`; says `stuck` when it is. A line on
its standard input lets it go on; it then says what its client was told.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from tests.contract.backends import AsgiBackend, Backend, WsgiBackend
from tests.contract.plans import Desk, Plan, RequestGuard
from tests.contract.rows import ASGI
from tests.contract.wire import looping

DONE, STUCK = '"done"', '"stuck"'


def main(name: Any, address: str, lease_s: str, stuck: str) -> None:
    with contextlib.ExitStack() as closing:
        loop = closing.enter_context(looping())
        backend: Backend = AsgiBackend(name, address, loop) if name in ASGI else WsgiBackend(name, address)
        closing.callback(backend.close)
        backend.prepared = address
        backend.serve(settings={"lease_s": float(lease_s)})
        assert backend.post(key=DONE, body={"item": "done"}).status == 201
        pending = backend.start(key=STUCK, body={"item": "stuck"}, plan=plan_of(stuck, guard := RequestGuard()))
        guard.await_arrival()
        print("stuck", flush=True)
        sys.stdin.readline()
        guard.open()
        answer = pending.answer()
        print(answer.status, "replayed" if answer.replayed else "fresh", flush=True)


def plan_of(stuck: str, guard: RequestGuard) -> Plan:
    async def write(desk: Desk) -> None:
        await desk.execute("INSERT INTO orders (item) VALUES (:1)", "stuck")

    # After its write the process holds the database's locks; before, only its claim.
    return Plan(guard=guard) if stuck == "after" else Plan(guard=guard, writes=False, acts=write)


if __name__ == "__main__":
    main(*sys.argv[1:])
