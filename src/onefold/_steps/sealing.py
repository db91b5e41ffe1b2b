"""Recorded results under the application's own encryption key, each bound to its work and its place there."""

from __future__ import annotations

from typing import Final, NamedTuple

from onefold._kernel.ports import Sealer
from onefold.errors import WorkUnreadable

_PLAIN: Final = b"\x00"
_SEALED: Final = b"\x01"


class Sealing(NamedTuple):
    """Seals and unseals recorded results."""

    sealer: Sealer | None = None
    unsealed: bool = False
    """Whether results that were recorded before there was a sealer can be read, too."""

    def seal(self, plain: bytes, context: bytes) -> bytes:
        return _PLAIN + plain if self.sealer is None else _SEALED + self.sealer.seal(plain, context)

    def unseal(self, stored: bytes, context: bytes, *, what: str) -> bytes:
        """The plain bytes. Raises WorkUnreadable, whose text names `what`."""
        tag, content = stored[:1], stored[1:]
        if tag == _PLAIN:
            if self.sealer is not None and not self.unsealed:
                raise WorkUnreadable(
                    f"{what} is not sealed, and this application seals: it was recorded before that (read those with "
                    "unsealed_answers=True for one retention), or not by onefold"
                )
            return content
        if tag != _SEALED:
            raise WorkUnreadable(f"{what} starts with {tag!r}, which this release does not know")
        if self.sealer is None:
            raise WorkUnreadable(f"{what} is sealed, and this process has no keys: pass sealer=Keyring(...)")
        return self.sealer.unseal(content, context)


def is_sealed(stored: bytes) -> bool:
    return stored.startswith(_SEALED)


def step_context(digest: bytes, position: int, name: str) -> bytes:
    """The context that a sealed result is bound to: moved to another work or step, it does not open."""
    return b"onefold.step.1:%b%d:%b" % (digest, position, name.encode("utf-8", "surrogatepass"))


def end_context(digest: bytes) -> bytes:
    """The context that the sealed result of a finished work is bound to."""
    return b"onefold.end.1:" + digest


def request_context(digest: bytes) -> bytes:
    """The context that the sealed request of a work is bound to."""
    return b"onefold.request.1:" + digest
