"""A request as its work keeps it: what it takes to make it again, without its caller and without any credential."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from onefold._http.request import Headers, Request

#: The headers that are kept: what says how the body is to be read and what may be answered, and which traces it is
#: part of. Everything else (Authorization, Cookie, keys of gateways) is not.
KEPT: Final = frozenset(
    {
        b"accept",
        b"accept-language",
        b"baggage",
        b"content-encoding",
        b"content-type",
        b"correlation-id",
        b"host",
        b"idempotency-key",
        b"prefer",
        b"traceparent",
        b"tracestate",
        b"x-correlation-id",
        b"x-request-id",
    }
)


class StoredRequest(NamedTuple):
    """What is kept of a request."""

    method: str
    root: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    principal: str


def write_request(request: Request, body: bytes, principal: str) -> bytes:
    """A line of JSON, and the body as it is."""
    head = {
        "method": request.method,
        "root": request.source.get("root_path") or request.source.get("SCRIPT_NAME") or "",
        "path": request.path,
        "query": request.query.decode("latin-1"),
        "headers": [
            [name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers if name in KEPT
        ],
        "principal": principal,
    }
    return json.dumps(head).encode() + b"\n" + body


def read_request(stored: bytes) -> StoredRequest:
    head, _, body = stored.partition(b"\n")
    read = json.loads(head)
    headers = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in read["headers"]])
    return StoredRequest(
        read["method"], read["root"], read["path"], read["query"].encode("latin-1"), headers, body, read["principal"]
    )
