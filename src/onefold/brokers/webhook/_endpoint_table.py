"""The endpoints of the database, for a broker: read again every second, and updated with the results of requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Confirm
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold.brokers._endpoints import EndpointSeen, check_url, disable, endpoints, note_failures, note_success
from onefold.errors import StoreError

T = TypeVar("T")

#: How long the endpoints read are valid.
FRESH_S: Final = 1.0

_log = logging.getLogger("onefold.relay")


class Endpoint(NamedTuple):
    """Where requests go."""

    name: str
    url: str
    secret: str | None = None
    """None: the broker's own."""


@dataclass(slots=True)
class _Fared:
    failures: int = 0
    error: str = ""
    taken: bool = False
    gone: bool = False


@dataclass(slots=True)
class Directory:
    """Without a database, there are none."""

    database: AsyncDatabase[Any] | None = None
    _known: dict[str, EndpointSeen] = field(default_factory=dict)
    _read_at: float = float("-inf")
    _fared: dict[str, _Fared] = field(default_factory=dict)

    async def refresh(self) -> None:
        if self.database is not None and time.monotonic() >= self._read_at + FRESH_S:
            found = await self._run(endpoints(self.database.dialect))
            self._known = {endpoint.name: endpoint for endpoint in found}
            self._read_at = time.monotonic()

    def wanting(self, topic: str) -> Sequence[Endpoint]:
        return [
            Endpoint(known.name, known.url, known.secret)
            for known in self._known.values()
            if known.enabled and known.wants(topic)
        ]

    def note_answer(self, name: str, confirm: Confirm, *, gone: bool) -> None:
        """One request was answered, or was not."""
        fared = self._fared.setdefault(name, _Fared())
        if confirm is None:
            fared.taken = True
        else:
            fared.failures += 1
            fared.error = str(confirm)
            fared.gone = fared.gone or gone

    async def note(self) -> None:
        """Write changed results of endpoints to the database, after the round's confirms. An error must not cause a
        repetition of the round: results that the database does not take now are written after the next round."""
        if self.database is None:
            self._fared.clear()
            return
        for name, how in list(self._fared.items()):
            try:
                disabled = await self._note(self.database.dialect, name, how)
            except StoreError as error:
                _log.warning(
                    "the outcome of deliveries to endpoint %s could not be stored: %s; it is tried again", name, error
                )
                return
            del self._fared[name]
            if disabled:
                _log.error("endpoint %s is disabled: %s; see `onefold endpoints`", name, how.error)

    async def _note(self, dialect: str, name: str, how: _Fared) -> bool:
        """Whether the endpoint is disabled now."""
        known = self._known.get(name)
        if how.taken and not how.gone and known is not None and not known.failures and known.last_error is None:
            return False
        self._read_at = float("-inf")
        if how.gone:
            return await self._run(disable(dialect, name, how.error)) > 0
        if how.taken:
            await self._run(note_success(dialect, name))
            return False
        return await self._run(note_failures(dialect, name, how.failures, how.error))

    async def _run(self, flow: Flow[T]) -> T:
        assert self.database is not None
        return await run_async(flow, TaskExecutor(self.database))


def make_endpoint(what: str, url: str) -> Endpoint:
    """An endpoint that was given. Its name is shown, so it has no path and no query: these may be secret."""
    name = f"{urlsplit(check_url(what, url)).hostname}#{blake2b(url.encode(), digest_size=4).hexdigest()}"
    return Endpoint(name, url)
