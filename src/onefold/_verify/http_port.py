"""The HTTP port of the checks: requests and their replies. Checks decide; a port sends.

Invariant: a request leaves exactly as it is written here. No header is joined, no redirect followed, no cookie kept:
each would hide what the checks look for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

HeaderLines = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """A request, with its header lines as they go out."""

    method: str
    url: str
    headers: HeaderLines
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """The answer to a request. Names of headers are in lower case."""

    status: int
    headers: HeaderLines = ()
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """The first line of this name."""
        return next(iter(self.header_lines(name)), None)

    def header_lines(self, name: str) -> list[str]:
        """All lines of this name."""
        return [value.decode("latin-1") for found, value in self.headers if found == name]

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 400


@dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The connection was refused, reset or silent."""

    reason: str
    connected: bool = True


Reply = ProbeAnswer | NoAnswer


class HttpPort(Protocol):
    """Sends requests at the same time; the replies are in the order of the requests."""

    def send(self, requests: Sequence[ProbeRequest], /) -> Sequence[Reply]: ...
