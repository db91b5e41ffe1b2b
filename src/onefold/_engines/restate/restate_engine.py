"""Sagas on a Restate server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from onefold._engines.restate.restate_api import ACTION, SIGNAL, RestateApi
from onefold._engines.restate.restate_context import CANCEL
from onefold._engines.restate.restate_journal import (
    SagaJournal,
    describe_kill,
    end_without_outcome,
    read_journals,
    status_of,
)
from onefold._engines.restate.restate_service import ServiceEndpoint, make_service
from onefold._engines.restate.running_steps import RunningSteps
from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import new_id
from onefold._kernel.redaction import redact
from onefold._kernel.telemetry import Listeners
from onefold._policy.ranges import require
from onefold._saga.definition import AnySaga, Start
from onefold._saga.engine import SagaEngine
from onefold._saga.saga_errors import SagaStopped, SagaUnknown
from onefold._saga.saga_names import check_saga_id
from onefold._saga.saga_status import HistoryEntry, SagaStatus, State
from onefold._saga.saga_values import Json
from onefold.errors import ConfigurationError, OnefoldError, StoreUnavailable

_SERVICE: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}")
_AWAY_S: Final = 0.5
#: Restate's own is a day, and then a late repetition of a start would run again.
_RETENTION_DAYS: Final = 30
_LISTED_AT_ONCE: Final = 200


class Restate(SagaEngine):
    """Runs sagas on a Restate server: `async with Restate(ingress=..., admin=..., listen=..., sagas=[order])`.

    `ingress` and `admin` are the server's two addresses, `sagas` are those that it runs. `listen` is where this process
    serves them, and `url` where the server reaches it, if that is not the same: it
    stays the same for as long as sagas run, for a saga goes on where it began. Without `listen` the engine runs none;
    it starts sagas that other processes run. `service` is its name at Restate: each application has its own. With
    `identity_keys`, the public keys of the server, requests of others are refused. A start is known for
    `retention_days`. At its end a step that runs has `stop_s` to end. `listener` gets the events of this process.
    """

    def __init__(
        self,
        *,
        ingress: str,
        admin: str,
        sagas: Sequence[AnySaga],
        listen: str | None = None,
        url: str | None = None,
        service: str = "onefold",
        identity_keys: Sequence[str] = (),
        retention_days: float = _RETENTION_DAYS,
        stop_s: float = 10.0,
        listener: Listeners | None = None,
    ) -> None:
        super().__init__(sagas, listener)
        if not _SERVICE.fullmatch(service):
            raise ConfigurationError(f"service={service!r} must be letters, digits, '.', '_' and '-', as 'onefold' is")
        if url is not None and listen is None:
            raise ConfigurationError(f"url={redact(url)!r} is where Restate reaches listen=..., which is not given")
        require("retention_days", retention_days, least=7, most=3650)
        require("stop_s", stop_s, most=3600)
        self._api = RestateApi(ingress=ingress, admin=admin, service=service)
        self._service = service
        self._listen = listen
        self._identity_keys = _checked_keys(identity_keys)
        self._url = url or f"http://{listen}"
        self._retention = timedelta(days=retention_days)
        self._stop_s = stop_s
        self._endpoint: ServiceEndpoint | None = None

    async def _open(self) -> None:
        self._api.open()
        # The address of one that an operator opens is that of the processes that run the sagas.
        if self._listen is None or not self._runs_sagas:
            return
        steps = RunningSteps()
        service = make_service(
            self._service, self._sagas, steps, self._is_cancelled, self._retention, self._listener, self._stuck
        )
        self._endpoint = ServiceEndpoint(service, steps, self._listen, self._identity_keys)
        await self._endpoint.open()
        await self._api.register(self._url)

    async def _close(self) -> None:
        """Let the steps that run end, for `stop_s`."""
        if self._endpoint is not None:
            endpoint, self._endpoint = self._endpoint, None
            await endpoint.close(self._stop_s)
        await self._api.close()

    async def _note(self, saga_id: str, action: str, actor: str) -> None:
        noted = {"action": action, "actor": actor, "at_ms": wall_ms()}
        await self._api.call(saga_id, ACTION, noted, key=new_id(wall_ms()), keep=True)

    async def _submit(self, start: Start) -> Start | None:
        known = await self._api.submit(start.saga_id, start.to_json())
        if known is None:
            return None
        journal = await self._journal(known)
        if journal.start is None:
            raise OnefoldError(f"saga {start.saga_id!r} was started before, and Restate does not say with what")
        return journal.start

    async def _outcome(self, saga_id: str) -> Json:
        while True:
            # A server that restarts has the result when it is back.
            with suppress(StoreUnavailable):
                if (outcome := await self._api.attach(saga_id)) is not None:
                    return outcome
                # Another answer may be a proxy's, which has no part in the saga: its end is what Restate lists.
                if failure := (await self._find(saga_id)).get("completion_failure"):
                    if (outcome := end_without_outcome(failure)) is None:
                        raise SagaStopped(saga_id, describe_kill(failure))
                    return outcome
            await asyncio.sleep(_AWAY_S)

    async def _signal(self, saga_id: str, signal: str, data: Json, signal_id: str | None) -> None:
        await self._find(saga_id)
        key = f"{saga_id}:{signal}:{signal_id or new_id(wall_ms())}"
        await self._api.call(saga_id, SIGNAL, {"signal": signal, "data": data}, key=key, keep=True)

    async def _list(self, state: State | None, limit: int) -> Sequence[SagaStatus]:
        where = {None: "true", "completed": "status = 'completed'", "compensated": "status = 'completed'"}.get(
            state, "status <> 'completed'"
        )
        found = await self._api.invocations(where, limit=limit if state is None else 10 * limit)
        listed: list[SagaStatus] = []
        for at in range(0, len(found), _LISTED_AT_ONCE):
            part = found[at : at + _LISTED_AT_ONCE]
            journals = read_journals(await self._api.journals([row["id"] for row in part]))
            every = [status_of(row, journals.get(row["id"], SagaJournal())) for row in part]
            listed += [each for each in every if state in (None, each.state)]
            if len(listed) >= limit:
                break
        return listed[:limit]

    async def status(self, saga_id: str) -> SagaStatus:
        found = await self._find(saga_id)
        return status_of(found, await self._journal(found["id"]))

    async def history(self, saga_id: str) -> Sequence[HistoryEntry]:
        found = await self._find(saga_id)
        actions = [
            HistoryEntry(kind="action", name=each["action"], result=each["actor"], ended_at=_moment(each["at_ms"]))
            for each in await self._api.actions(saga_id)
        ]
        return [*(await self._journal(found["id"])).history, *actions]

    async def cancel(self, saga_id: str, *, reason: str = "cancelled") -> bool:
        found = await self._find(saga_id)
        if found["status"] == "completed":
            return False
        # First the reason. If no process serves the sagas, the saga is cancelled without one.
        await self._api.call(saga_id, CANCEL, {"data": reason}, key=new_id(wall_ms()), keep=False)
        if not await self._api.change(found["id"], "cancel"):
            return False
        # A stopped saga would be retried after its pause only: resume it now.
        await self._api.change(found["id"], "resume")
        return True

    async def _resume(self, saga_id: str) -> bool:
        found = await self._find(saga_id)
        if found["status"] == "completed":
            return False
        await self._api.change(found["id"], "resume")
        return True

    async def _find(self, saga_id: str) -> Mapping[str, Any]:
        check_saga_id(saga_id)
        self._check_open()
        found = await self._api.invocation(saga_id)
        if found is None:
            raise _unknown(saga_id)
        return found

    async def _journal(self, invocation: str) -> SagaJournal:
        return read_journals(await self._api.journals([invocation])).get(invocation, SagaJournal())

    async def _is_cancelled(self, invocation: str) -> bool:
        return (await self._journal(invocation)).cancelled


def _checked_keys(keys: Sequence[str]) -> Sequence[str]:
    for key in keys:
        if not key.startswith("publickeyv1_"):
            raise ConfigurationError(f"identity_keys has {key!r}, and Restate's public keys begin with publickeyv1_")
    return tuple(keys)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def _unknown(saga_id: str) -> SagaUnknown:
    return SagaUnknown(f"there is no saga {saga_id!r} at Restate")
