"""Requests and responses as plain values, the same for ASGI and WSGI; and what marks a request of the completer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

from onefold._kernel.messages import CARRIED, pick_carried
from onefold.errors import HeaderRepeated

#: Methods that only read.
READS: Final = frozenset({"GET", "HEAD"})

#: Names in lower case, in the order received or to be sent.
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


@lru_cache(maxsize=256)
def _encode_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


@lru_cache(maxsize=256)
def _encode_path(path: str, encoding: str, errors: str) -> str:
    """A path may hold what no name does: blanks, zero bytes, and braces that look like a parameter."""
    return quote(path, safe="/:@!$&'()*+,;=~", encoding=encoding, errors=errors)


class Request(NamedTuple):
    """The head of a request: its `method`, its decoded `path`, its `query` and `headers` as bytes. `source` is the ASGI
    scope or the WSGI environ it came from."""

    method: str
    path: str
    query: bytes = b""
    headers: Headers = ()
    source: Mapping[str, Any] = MappingProxyType({})

    def values(self, name: str) -> list[bytes]:
        """Every line of a header, undecoded."""
        return lines_of(self.headers, name)

    @property
    def root(self) -> str:
        """Where the application is mounted, as the server says."""
        root: str = self.source.get("root_path") or self.source.get("SCRIPT_NAME") or ""
        return root.rstrip("/")

    @property
    def mount(self) -> str:
        """Where the application is mounted inside of another one, percent-encoded: "" where it is not.

        Starlette separates its own mounts from the root that a server or proxy names. In WSGI both are SCRIPT_NAME.
        """
        outside = self.source.get("app_root_path")
        if outside is not None:
            root: str = self.source.get("root_path", "")
            return _encode_path(root.removeprefix(outside).rstrip("/"), "utf-8", "surrogatepass")
        script: str = self.source.get("SCRIPT_NAME", "")
        return _encode_path(script.rstrip("/"), "latin-1", "xmlcharrefreplace") if script else ""

    @property
    def path_below_root(self) -> str:
        """The path as the application's routes see it. WSGI takes the root away itself, ASGI servers may or may not."""
        root = self.source.get("root_path", "").rstrip("/")
        if root and (self.path == root or self.path.startswith(root + "/")):
            return self.path[len(root) :]
        return self.path

    def header(self, name: str) -> str | None:
        """A header that has one value. Two lines of it are refused with 400: one may be the gateway's,
        the other the client's.

        A WSGI server joins the lines before they can be counted: their values with commas between are another value.
        """
        lines = lines_of(self.headers, name)
        if len(lines) > 1:
            raise HeaderRepeated(f"The header {name} was sent {len(lines)} times; send it once.")
        return lines[0].decode("latin-1") if lines else None


def lines_of(headers: Headers, name: str) -> list[bytes]:
    """Every line of a header among these, undecoded."""
    wanted = _encode_name(name)
    by_name = dict(headers)
    if len(by_name) == len(headers):  # no name is there twice, as nearly always: found without a loop
        return [by_name[wanted]] if wanted in by_name else []
    return [value for found, value in headers if found == wanted]


def first_line(headers: Headers, name: str) -> str | None:
    """The first line of a header among these."""
    lines = lines_of(headers, name)
    return lines[0].decode("latin-1") if lines else None


def pick_carried_headers(headers: Headers) -> dict[str, str]:
    """Trace and correlation, as the events of a request carry them on."""
    found = {name: first_line(headers, name) for name in CARRIED}
    found["correlation-id"] = found["correlation-id"] or first_line(headers, "x-correlation-id")
    return pick_carried(found)


class Response(NamedTuple):
    """A whole response."""

    status: int
    headers: Headers
    body: bytes = b""


#: Where the completer's mark is in the scope or environ. A client writes headers, which are elsewhere, and never an
#: object of ours.
COMPLETING: Final = "onefold.completing"


@dataclass(frozen=True, slots=True)
class Completing:
    """The request is made again to complete this work, on behalf of the principal that it was begun for, as if it had
    come to where its application was mounted."""

    digest: bytes
    principal: str = field(repr=False)
    mount: str = ""


def completing_of(source: Mapping[str, Any]) -> Completing | None:
    """The mark of a request that the completer makes; None for those of clients."""
    found = source.get(COMPLETING)
    return found if isinstance(found, Completing) else None


def principal_in(source: Mapping[str, Any]) -> str | None:
    """The principal of a request that the completer makes; None for those of clients."""
    found = completing_of(source)
    return None if found is None else found.principal
