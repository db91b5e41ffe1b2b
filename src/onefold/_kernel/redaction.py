"""Addresses of servers as people may see them: in messages, logs, tables and pages.

Invariant: no user, password, option or token of an address is left in what `redact` returns. An address that cannot be
read with certainty is shown as its scheme only: where an unescaped password ends is unknown. Only a path that is asked
for is a judgement: a short token, or one of lower-case letters, looks like the name of a resource.
"""

from __future__ import annotations

import re

_HIDDEN = "..."

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")

#: A text without `//` that is none the less an address: `redis:secret@host`, or libpq's `host=db password=secret`.
_LIKE_AN_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:|.*password\s*=", re.DOTALL)

#: A name or a number of a host, and a port.
_HOST = re.compile(r"(?:[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")

#: Paths of these schemes name a thing and are worth seeing. A path of any other (a webhook's) may be a token.
_NAMING_PATHS = frozenset({"postgresql", "postgres", "sqlite", "redis", "rediss", "valkey", "valkeys", "amqp", "amqps"})

#: A segment of a path that may be a token: long, and no word in lower case.
_TOKEN = re.compile(r"(?<![^/])(?=[^/]*[^/a-z_.-])[^/]{20,}")


def redact(address: str, *, with_path: bool = False) -> str:
    """Scheme, host and port, and the path where it names a database, or is asked for: then without what may be a token.
    Of several hosts the first."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        path = address.partition("?")[0]
        return _HIDDEN if "@" in address or "//" in address or _LIKE_AN_ADDRESS.match(address) else path
    if not _SCHEME.fullmatch(scheme):
        return _HIDDEN
    location = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = location.partition("/")
    host, several, _ = authority.rpartition("@")[2].partition(",")
    # An "@" outside of the authority: a password that holds an unescaped slash, question or number sign.
    if rest.count("@") > authority.count("@") or not _HOST.fullmatch(host):
        return f"{scheme}://{_HIDDEN}"
    if several:
        return f"{scheme}://{host},{_HIDDEN}"
    if scheme.lower() in _NAMING_PATHS:
        return f"{scheme}://{host}{slash}{path}"
    return f"{scheme}://{host}{slash}{_TOKEN.sub(_HIDDEN, path)}" if with_path else f"{scheme}://{host}"
