"""A process that serves the requests which it reads, line by line: `python -m tests.upgrade.one_process`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import Any

from onefold import Onefold, single_principal
from onefold._http.route_policy import Settings

#: A handler that is held is not cut off, however slow the other process is.
_LEASE_S = 3600.0

_LEVELS: dict[str, Settings] = {
    "": {"lease_s": _LEASE_S},
    "serializable": {"lease_s": _LEASE_S, "isolation": "serializable"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request. Its handler, if it runs, says so, and answers when it is told to."""

    key: str
    body: str = '{"cents": 5}'
    held: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What was answered, and whether the handler has run for it."""

    status: int
    replayed: bool
    ran: bool


def serve(address: str, known: str, level: str) -> None:
    once = Onefold(address, principal=single_principal, earlier_records=json.loads(known))
    held, runs = False, 0

    def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        nonlocal runs
        runs += 1
        if held:
            print("runs", flush=True)
            sys.stdin.readline()
        start_response("201 Created", [])
        return [b"ran"]

    app = once.wsgi(application, {"POST /orders/{id}/refunds": once.policy(**_LEVELS[level])})
    for line in sys.stdin:
        asked = Asked(**json.loads(line))
        held, before = asked.held, runs
        body = asked.body.encode()
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/orders/17/refunds",
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_IDEMPOTENCY_KEY": f'"{asked.key}"',
            "wsgi.input": BytesIO(body),
        }
        said: list[Any] = []
        b"".join(app(environ, lambda status, headers, exc_info=None, said=said: said.append((status, dict(headers)))))
        [(status, headers)] = said
        answered = Answered(status=int(status[:3]), replayed="Idempotent-Replayed" in headers, ran=runs > before)
        print(json.dumps(asdict(answered)), flush=True)
    once.close()


if __name__ == "__main__":
    serve(*sys.argv[1:])
