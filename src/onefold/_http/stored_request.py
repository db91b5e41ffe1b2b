"""A request as its work keeps it: what it takes to make it again, without its caller and without any credential."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_plus

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

_CONTEXT: Final = frozenset({b"traceparent", b"tracestate"})

#: Names of parameters of a query that hold a credential, as gateways and vendors call them.
_CREDENTIAL: Final = re.compile(
    r".*(?:token|secret|passw(?:or)?d|signature|jwt|bearer|credential|api[-_]?key|session[-_]?id)"
    r"|(?:.*[-_.])?(?:key|sig|auth|authorization)",
    re.IGNORECASE,
)


class StoredRequest(NamedTuple):
    """What is kept of a request."""

    method: str
    scheme: str
    root: str
    outer_root: str | None
    """Where the application above it is mounted, in ASGI, where there is one."""
    mount: str
    """Where the application was when it got the request: the hosts above it, which a scope does not name, and its
    prefix."""
    path: str
    query: bytes
    headers: Headers
    body: bytes
    principal: str


def write_request(
    request: Request, body: bytes, principal: str, *, mount: str = "", context: Mapping[str, str] | None = None
) -> bytes | None:
    """A line of JSON, and the body as it is. None: it has a credential in its query, and cannot be made again without;
    nothing of it is kept, and only its client can go on with it. The `context` of its own span, where it has one, is
    kept in the place of its caller's."""
    source = request.source
    if any(_CREDENTIAL.fullmatch(unquote_plus(name)) for name in _names(request.query)):
        return None
    kept = KEPT - _CONTEXT if context else KEPT
    head = {
        "method": request.method,
        "scheme": source.get("scheme") or source.get("wsgi.url_scheme") or "http",
        "root": source.get("root_path") or source.get("SCRIPT_NAME") or "",
        "outer_root": source.get("app_root_path"),
        "mount": mount,
        "path": request.path,
        "query": request.query.decode("latin-1"),
        "headers": [
            *([name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers if name in kept),
            *([name, value] for name, value in (context or {}).items()),
        ],
        "principal": principal,
    }
    return json.dumps(head).encode() + b"\n" + body


def read_request(stored: bytes) -> StoredRequest:
    head, _, body = stored.partition(b"\n")
    read = json.loads(head)
    headers = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in read["headers"]])
    return StoredRequest(
        read["method"],
        read["scheme"],
        read["root"],
        read["outer_root"],
        read["mount"],
        read["path"],
        read["query"].encode("latin-1"),
        headers,
        body,
        read["principal"],
    )


def _names(query: bytes) -> list[str]:
    """Of its parameters, as they were sent."""
    return [part.partition("=")[0] for part in query.decode("latin-1").replace(";", "&").split("&")]
