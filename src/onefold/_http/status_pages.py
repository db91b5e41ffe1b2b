"""Two resources every application gets: the status of a key, and what this API promises about keys.

The status of a key is shown to its own principal only: the caller brings the key, and the principal is found the same
way as for the request itself, so that no caller can name another's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from html import escape
from typing import TypeAlias
from urllib.parse import parse_qs

from onefold._http.authentication import ApplicationRefusal, authorize, find_principal
from onefold._http.problems import TYPE_PREFIX
from onefold._http.request import Request, Response
from onefold._http.request_guard import HEADER, RequestGuard
from onefold._http.request_identity import scopes_of
from onefold._http.route_policy import Policy, Route, mount_template
from onefold._idempotency.model import Status
from onefold._kernel.effects import Flow
from onefold.errors import KeyMissing, OnefoldError

Page: TypeAlias = Callable[[], Flow[Response]]

#: Methods and templates, as in `POST /payments`, with what each promises.
Operations: TypeAlias = Callable[[], dict[str, Policy]]

#: Every problem that a caller can get: its status, the end of its type, and what it means.
PROBLEMS = (
    (400, "key-missing", "The route requires an Idempotency-Key and the request has none."),
    (400, "key-malformed", "The header cannot be read as one key."),
    (400, "body-incomplete", "The body ended early; nothing was done."),
    (400, "header-repeated", "A header that tells who is asking was sent more than once."),
    (400, "condition-malformed", "If-Match or If-None-Match cannot be read as entity tags; nothing was done."),
    (401, "principal-missing", "The application could not tell who is asking."),
    (403, "not-authorized", "The application does not allow this request to the caller."),
    (406, "answer-encoded", "The stored answer has a content coding that the request does not accept: accept it."),
    (408, "body-too-slow", "The body did not arrive in time; nothing was done. Retry with the same key."),
    (
        409,
        "key-in-flight",
        "The same request is being worked on, or its process died and its lease still runs. Wait for Retry-After "
        "(where the request is done in recorded steps, up to the rest of the lease), then retry with the same key.",
    ),
    (
        409,
        "work-parked",
        "The request was begun, and a person must find out how it ended. The operator must act first.",
    ),
    (410, "key-expired", "The key is older than the route remembers; it was not run."),
    (410, "answer-not-kept", "The request completed, but its answer was too large to be kept."),
    (
        412,
        "condition-failed",
        "The resource is not in the state that If-Match or If-None-Match names; nothing was done. Its ETag, if there "
        "is one, is in the answer. Read again, and send a new request under a new key.",
    ),
    (413, "body-too-large", "The body is larger than the route accepts; nothing was done."),
    (422, "key-reused", "The key already names another request. Use a new key for a new request."),
    (428, "condition-missing", "The route requires If-Match or If-None-Match, and the request has neither."),
    (429, "too-many-requests", "You ask for more than your share; nothing was done. Wait for Retry-After."),
    (500, "handler-broken", "The application broke its own promise; nothing was stored."),
    (500, "authentication-broken", "The application could not find out who is asking; nothing was done."),
    (500, "work-changed", "The application was changed in the middle of this request. The operator must act first."),
    (500, "statement-refused", "The database refused what the application wrote; nothing was stored."),
    (503, "store-unavailable", "Nothing was decided. Retry later with the same key."),
    (503, "store-busy", "Nothing was decided. Retry later with the same key."),
    (503, "store-read-only", "Nothing was done. The operator must act first."),
    (503, "store-not-migrated", "Nothing was done. The operator must act first."),
    (503, "answer-unreadable", "The request completed; its stored answer cannot be read. The operator must act first."),
    (
        503,
        "work-unreadable",
        "The request was begun; its recorded steps cannot be read. The operator must act first.",
    ),
    (503, "outcome-unknown", "The outcome is unknown. Retry later with the same key: it happens once."),
    (503, "outcome-unknowable", "The outcome is unknown and the request had no key: look before you repeat it."),
    (503, "overloaded", "There is more to do than can be done; nothing was done. Wait for Retry-After."),
    (504, "deadline-passed", "The time you granted was over before the request could run; nothing was done."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The resources below `base`: `{base}/specification` and `{base}/status`."""

    guard: RequestGuard
    operations: Operations
    mount_of: Callable[[Request], str]
    """Where the application is mounted, as far as its operations are named by it."""
    base: str = "/onefold"
    others: Policy | None = None
    """How callers are authenticated who name no operation of this application; None where only its routes know."""

    def find(self, request: Request) -> Page | None:
        """The page that a request is for, if it is one of ours."""
        if request.method != "GET" or not (path := request.path_below_root).startswith(self.base):
            return None
        match path.removeprefix(self.base):
            case "/specification":
                return lambda: self._specification(request)
            case "/status":
                return lambda: self._status(request)
            case _:
                return None

    def _templates(self, mount: str) -> dict[str, str]:
        """The application's own names of its operations, by those they have where it is mounted."""
        split = [operation.split(" ", 1) for operation in self.operations()]
        return {f"{method} {mount_template(mount, template)}": f"{method} {template}" for method, template in split}

    async def _specification(self, request: Request) -> Response:
        operations = self.operations()
        mounted = {name: operations[own] for name, own in self._templates(self.mount_of(request)).items()}
        return _whole(200, b"text/html; charset=utf-8", specification(mounted).encode())

    async def _status(self, request: Request) -> Response:
        """`GET {base}/status?operation=POST /payments` with the Idempotency-Key header of the request in question.

        The caller is authenticated first: one who may not see the answer learns nothing here, not even whether there is
        such an operation.
        """
        operations, mount = self.operations(), self.mount_of(request)
        templates = self._templates(mount)
        operation = parse_qs(request.query.decode("latin-1")).get("operation", [""])[0]
        # Named as in the specification; or as in the application itself, wherever it is mounted.
        own = templates.get(operation, operation)
        policy = operations.get(own)
        governing = policy or self.others
        try:
            if governing is not None:
                framework = self.guard.framework
                await authorize(framework, governing.authorize_function, request, b"", None)
                principal = await find_principal(framework, governing.principal_function, request, b"", None)
            if policy is None:
                return _answer_unknown(templates if governing is not None else ())
            lines = request.values(HEADER)
            if not lines:
                raise KeyMissing("Send the Idempotency-Key header of the request you are asking about.")
            key, _ = self.guard.read_key(lines, policy)
            method, template = own.split(" ", 1)
            route = Route(template, policy, mount=mount)
            found = Status("unknown")
            for scope in scopes_of(principal, method, route, await self.guard.naming.find()):
                found = await self.guard.store_of(policy).status(scope.digest(key))
                if found.state != "unknown":
                    break
        except OnefoldError as error:
            return self.guard.log_and_refuse(error, request, f"GET {self.base}/status")
        except ApplicationRefusal as answered:
            return answered.response
        body: dict[str, str | int | None] = {"operation": operation, "state": found.state}
        if found.status is not None:
            body |= {"status": found.status, "expires_at": found.expires_at}
        return _whole(200, b"application/json", json.dumps(body).encode())


def _answer_unknown(operations: Collection[str]) -> Response:
    known = f" Idempotent operations: {', '.join(sorted(operations))}." if operations else ""
    problem = {
        "type": TYPE_PREFIX + "operation-unknown",
        "title": "Unknown operation",
        "status": 404,
        "detail": "Name one with ?operation=." + known,
        "retryable": False,
    }
    return _whole(404, b"application/problem+json", json.dumps(problem).encode())


def specification(operations: dict[str, Policy]) -> str:
    """The published idempotency specification of an API, with its expiration policy, as HTML."""
    rows = "".join(_operation_row(operation, policy) for operation, policy in sorted(operations.items()))
    problems = "".join(
        f"<tr><td>{status}</td><td><code>{TYPE_PREFIX}{slug}</code></td><td>{escape(meaning)}</td></tr>"
        for status, slug, meaning in PROBLEMS
    )
    return _SPECIFICATION.format(rows=rows, problems=problems)


def _operation_row(operation: str, policy: Policy) -> str:
    late = "runs again" if policy.expiry == "new" else "is refused (410); keys must be UUIDv7"
    cells = (
        f"<code>{escape(operation)}</code>",
        "required" if policy.required else "optional",
        "quoted string" if policy.strict else "quoted string, or bare",
        f"{policy.retention_s / 3600:g} h",
        late,
        f"waits up to {policy.wait_s:g} s, then 409" if policy.wait_s else "409 at once",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _whole(status: int, media_type: bytes, body: bytes) -> Response:
    headers = (
        (b"content-type", media_type),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    )
    return Response(status, headers, body)


_SPECIFICATION = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Idempotency of this API</title>
<meta name="viewport" content="width=device-width">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; width: 100%; margin: 1rem 0 }}
th, td {{ text-align: left; border-bottom: 1px solid #ddd; padding: .4rem .6rem; vertical-align: top }}
</style></head><body>
<h1>Idempotency of this API</h1>
<p>Requests to the operations below may be retried safely: send the header <code>Idempotency-Key</code> with a value of
your own, for example <code>"0192f0c1-7f3a-7b6e-8c51-3d2a9e4b5f60"</code>, and repeat it on every retry of the same
request. The request happens once; every retry gets the first answer, byte for byte, marked
<code>Idempotent-Replayed: true</code>. This implements draft-ietf-httpapi-idempotency-key-header-07.</p>
<h2>Operations and their expiration policy</h2>
<table><tr><th>Operation</th><th>Key</th><th>Syntax</th><th>Remembered for</th><th>A later retry</th>
<th>While in flight</th></tr>{rows}</table>
<p>Keys belong to the authenticated caller and to one operation: the same key of another caller, or on another
operation, names another request. Answers of the 2xx, 3xx and 4xx classes are remembered, except 401, 403, 407, 408, 425
and 429, and except refusals of a request that did not reach its operation (validation): a corrected one runs under the
same key. After a 5xx nothing remains and a retry runs again.</p>
<h2>Problems</h2>
<p>Refusals are <code>application/problem+json</code> with a stable <code>type</code> and a member
<code>retryable</code>.</p>
<table><tr><th>Status</th><th>Type</th><th>Meaning</th></tr>{problems}</table>
</body></html>
"""
