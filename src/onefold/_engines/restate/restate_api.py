"""Requests to a Restate server over HTTP: to its ingress to start, signal and await, to its admin API to register,
look up, cancel and resume.

Every call can be repeated: a start is the same start, a registration the same registration.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from onefold._kernel.clock import monotonic_s
from onefold._kernel.extras import missing_extra
from onefold._kernel.redaction import redact
from onefold._saga.saga_values import Json
from onefold.errors import ConfigurationError, OnefoldError, StoreUnavailable

try:
    import httpx
except ModuleNotFoundError as error:
    raise missing_extra(error, "restate") from None

#: The workflow, and the handlers beside it.
RUN, SIGNAL, ACTION = "run", "signal", "action"
_ANSWER_S_MAX: Final = 30.0
_SERVED_S_MAX: Final = 5.0
#: How long one request waits for a result before the next one does. Proxies cut connections silent for a minute.
ATTACH_S: Final = 45.0
#: How long until a server that has just begun is asked again.
_LATE_S: Final = 0.2


class RestateApi:
    """One Restate server, and the service there that runs the sagas."""

    def __init__(self, *, ingress: str, admin: str, service: str) -> None:
        self._ingress = _address("ingress", ingress)
        self._admin = _address("admin", admin)
        self._service = service
        self._opened: httpx.AsyncClient | None = None

    def open(self) -> None:
        """Open the client."""
        # Each result that is waited for holds a connection, and what ends the wait needs one more.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._opened = httpx.AsyncClient(timeout=_ANSWER_S_MAX, limits=limits)

    async def close(self) -> None:
        """Close the client, until it is opened again."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await opened.aclose()

    @property
    def _client(self) -> httpx.AsyncClient:
        assert self._opened is not None, "it is open"
        return self._opened

    async def register(self, url: str) -> None:
        """Register the address of the service with Restate. The same address replaces its earlier registration."""
        answer = await self._send("POST", f"{self._admin}/deployments", data={"uri": url, "force": True})
        if answer.is_error:
            raise ConfigurationError(
                f"Restate at {redact(self._admin)} does not take {redact(url)} as the address of the sagas "
                f"({answer.status_code}): {answer.text[:500]}; url= must be where the server reaches this process"
            )

    async def submit(self, saga_id: str, data: Json) -> str | None:
        """Start a workflow. None: it is new; else the id of the invocation there was."""
        answer = await self._invoke(saga_id, f"{RUN}/send", data)
        reply = answer.json()
        return None if reply["status"] == "Accepted" else str(reply["invocationId"])

    async def call(self, saga_id: str, handler: str, data: Json, *, key: str, keep: bool) -> bool:
        """Have a handler beside the workflow run, once for a key. False: no process served it for a while; then, if it
        is to `keep` it, Restate has it run when one does."""
        headers = {"idempotency-key": key}
        try:
            async with asyncio.timeout(_SERVED_S_MAX):
                await self._invoke(saga_id, handler, data, headers)
        except TimeoutError:
            if keep:
                await self._invoke(saga_id, f"{handler}/send", data, headers)
            return False
        return True

    async def attach(self, saga_id: str) -> Json:
        """Wait for what the workflow returns. None: it has not returned yet, or another answer came."""
        url = self._workflow(saga_id, "attach")
        try:
            answer = await self._client.get(url, timeout=httpx.Timeout(_ANSWER_S_MAX, read=ATTACH_S))
        except httpx.ReadTimeout:
            return None
        except httpx.TransportError as error:
            raise _unavailable(url, error) from error
        return answer.json() if answer.is_success else None

    async def invocation(self, saga_id: str) -> Mapping[str, Any] | None:
        """The invocation of a saga at Restate, if there is one.

        A server that has just begun answers queries before it has read its log to the end, as if there were nothing:
        only its ingress, which waits for that, says that there is none.
        """
        give_up_at = monotonic_s() + _ANSWER_S_MAX
        while not (found := await self.invocations(f"target_service_key = {_literal(saga_id)}", limit=1)):
            answer = await self._send("GET", self._workflow(saga_id, "output"))
            if _is_missing(answer):
                return None
            if monotonic_s() > give_up_at:
                raise StoreUnavailable(
                    f"Restate at {self._admin} does not list saga {saga_id!r}, and its ingress does not say that there "
                    f"is none, but {answer.status_code}: {answer.text[:500]}"
                )
            await asyncio.sleep(_LATE_S)
        return found[0]

    async def invocations(self, where: str = "true", *, limit: int) -> Sequence[Mapping[str, Any]]:
        """The newest invocations of the service."""
        return await self._query(
            "SELECT id, target_service_key, status, created_at, modified_at, completed_at, retry_count, last_failure, "
            "last_failure_error_code, completion_result, completion_failure FROM sys_invocation "
            f"WHERE target_service_name = {_literal(self._service)} AND target_handler_name = '{RUN}' AND {where} "
            f"ORDER BY created_at DESC LIMIT {limit:d}"
        )

    async def journals(self, invocations: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """The entries of their journals, in order."""
        if not invocations:
            return []
        ids = ", ".join(_literal(each) for each in invocations)
        return await self._query(
            f"SELECT id, index, entry_json, appended_at FROM sys_journal WHERE id IN ({ids}) ORDER BY id, index"
        )

    async def actions(self, saga_id: str) -> Sequence[Json]:
        """The actions of operators on a saga, in order."""
        rows = await self._query(
            "SELECT key, completion_success_value_utf8 AS kept FROM sys_promise "
            f"WHERE service_name = {_literal(self._service)} AND service_key = {_literal(saga_id)} AND completed"
        )
        found = {row["key"]: json.loads(row["kept"])["data"] for row in rows if row["key"].startswith(f"{ACTION}:")}
        return [found[key] for key in sorted(found, key=lambda key: int(key.rpartition(":")[2]))]

    async def change(self, invocation: str, verb: str) -> bool:
        """Cancel or resume an invocation. False: it has ended, or there is nothing to do."""
        url = f"{self._admin}/invocations/{invocation}/{verb}"
        answer = await self._send("PATCH", url)
        if answer.status_code in (404, 409):
            return False
        return bool(_check_answer(answer))

    async def _invoke(
        self, saga_id: str, handler: str, data: Json, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        url = f"{self._ingress}/{self._service}/{quote(saga_id, safe='')}/{handler}"
        answer = await self._send("POST", url, data=data, headers=headers)
        if _is_missing(answer):
            raise ConfigurationError(
                f"Restate at {self._ingress} has no service {self._service!r}: an engine with listen= registers it"
            )
        return _check_answer(answer)

    def _workflow(self, saga_id: str, what: str) -> str:
        return f"{self._ingress}/restate/workflow/{self._service}/{quote(saga_id, safe='')}/{what}"

    async def _query(self, sql: str) -> Sequence[Mapping[str, Any]]:
        headers = {"accept": "application/json"}
        answer = await self._send("POST", f"{self._admin}/query", data={"query": sql}, headers=headers)
        rows: Sequence[Mapping[str, Any]] = _check_answer(answer).json()["rows"]
        return rows

    async def _send(
        self, method: str, url: str, *, data: Json = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        try:
            return await self._client.request(method, url, json=data, headers=headers)
        except httpx.TransportError as error:
            raise _unavailable(url, error) from error


def _is_missing(answer: httpx.Response) -> bool:
    """Whether Restate itself says so: a proxy has pages of its own for what it does not reach."""
    if answer.status_code != 404:
        return False
    try:
        told = answer.json()
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("code") == 404


def _check_answer(answer: httpx.Response) -> httpx.Response:
    if answer.is_server_error:
        raise StoreUnavailable(
            f"Restate answers {redact(str(answer.url), with_path=True)} with {answer.status_code}: {answer.text[:500]}"
        )
    if answer.is_error:
        raise OnefoldError(
            f"Restate refuses {redact(str(answer.url), with_path=True)} with {answer.status_code}: {answer.text[:500]}"
        )
    return answer


def _unavailable(url: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"Restate does not answer {redact(url, with_path=True)}: {type(error).__name__} {error}")


def _address(name: str, given: str) -> str:
    try:
        url = httpx.URL(given)
    except (TypeError, httpx.InvalidURL):
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        shown = redact(str(given)) if "@" in str(given) else given
        raise ConfigurationError(
            f"{name}={shown!r} must be the address of a Restate server, as 'http://localhost:8080'"
        )
    return str(given).rstrip("/")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
