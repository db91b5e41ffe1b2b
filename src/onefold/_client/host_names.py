"""The names of hosts in settings, found by what clients say of their requests.

Clients leave the usual port out, have IPv6 addresses in brackets and names in ASCII, all in lower case. Settings are
written by people.
"""

from __future__ import annotations

from contextlib import suppress

from onefold.errors import ConfigurationError


def read_host(setting: str, name: object) -> str:
    """A host of a setting, with or without its port, in the spelling of clients. Refuses what no host can match."""
    if isinstance(name, str) and "*" in name:
        raise ConfigurationError(f"{setting} has {name!r}, which is not a host: there are no patterns, name each host")
    if not isinstance(name, str) or not name or "/" in name or name != name.strip():
        raise not_a_host(setting, name)
    return f"[{_spell(name)}]" if name.count(":") > 1 and not name.startswith("[") else _spell(name)


def names_of(host: str) -> tuple[str, ...]:
    """What settings may call a host: with its port, which clients leave out where it is the usual one, or without."""
    host = _spell(host)
    without, _, port = host.rpartition(":")
    return (host, without) if port.isdigit() else (host, f"{host}:443", f"{host}:80")


def not_a_host(setting: str, name: object) -> ConfigurationError:
    return ConfigurationError(
        f"{setting} has {name!r}, which is not a host: write 'api.stripe.com' or 'localhost:8000', without scheme and "
        "path"
    )


def _spell(name: str) -> str:
    if not name.isascii():
        with suppress(UnicodeError):  # no host has such a name, but a function that `calls` names may
            name = name.encode("idna").decode("ascii")
    return name.lower()
