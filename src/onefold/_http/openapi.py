"""The OpenAPI description of idempotent operations: the header, the problems, the replay mark, the retention."""

from __future__ import annotations

import re
from typing import Any

from onefold._http.keys import LENGTH_MAX, key_schema
from onefold._http.route_policy import Policy

_PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "retryable"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "retryable": {"type": "boolean", "description": "Whether a retry with the same key can help."},
    },
}

_RETRY_AFTER = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds to wait before the retry."}}

_REPLAYED = {
    "Idempotent-Replayed": {
        "schema": {"type": "string", "enum": ["true"]},
        "description": "Present when this is the stored answer to an earlier request with the same key.",
    }
}


def describe(document: dict[str, Any], operations: dict[str, Policy]) -> None:
    """Add to an OpenAPI document what its idempotent operations promise. Nothing the author wrote is replaced."""
    for name, policy in operations.items():
        method, template = name.split(" ", 1)
        # The document names parameters without the type that a route may give them: `{name:path}`.
        path = re.sub(r":[^{}]+\}", "}", template)
        operation = document.get("paths", {}).get(path, {}).get(method.lower())
        if operation is not None:
            _describe(operation, policy)
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            schemas.setdefault("IdempotencyProblem", _PROBLEM_SCHEMA)


def _describe(operation: dict[str, Any], policy: Policy) -> None:
    parameters = operation.setdefault("parameters", [])
    if not any(p.get("name", "").lower() == "idempotency-key" for p in parameters):
        parameters.append(_parameter(policy))
    responses = operation.setdefault("responses", {})
    for status, response in responses.items():
        if status.startswith(("2", "3")):
            response.setdefault("headers", {}).update(_REPLAYED)
    for status, (meaning, headers) in _problems(policy).items():
        addition = {
            "description": meaning,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/IdempotencyProblem"}}},
        } | ({"headers": headers} if headers else {})
        if status not in responses:
            responses[status] = addition
        else:  # the framework's own answer with this status (FastAPI's 422) stays beside ours
            responses[status].setdefault("content", {}).update(addition["content"])
            responses[status]["description"] += f". Or: {meaning}"
    operation["x-idempotency"] = {
        "required": policy.required,
        "retention_s": policy.retention_s,
        "expiry": policy.expiry,
        "in_flight_wait_s": policy.wait_s,
    }


def _parameter(policy: Policy) -> dict[str, Any]:
    dated = policy.expiry == "refuse"
    return {
        "name": "Idempotency-Key",
        "in": "header",
        "required": policy.required,
        "description": (
            "Names the intent: repeat it on every retry of the same request, and the request happens once. Answers are "
            f"remembered for {policy.retention_s:g} s. "
            + ("A key is a UUIDv7" if dated else f"A key has 1 to {LENGTH_MAX} characters of printable ASCII")
            + (", in double quotes." if policy.strict else ", in double quotes or without.")
            + (" It is refused when it is older than that (410) or dated more than a day ahead (400)." if dated else "")
        ),
        "schema": key_schema(strict=policy.strict, dated=dated),
        "example": '"0192f0c1-7f3a-7b6e-8c51-3d2a9e4b5f60"',
    }


def _problems(policy: Policy) -> dict[str, tuple[str, dict[str, Any] | None]]:
    found: dict[str, tuple[str, dict[str, Any] | None]] = {
        "400": ("The Idempotency-Key is missing or malformed", None),
        "409": ("The same request is in flight", _RETRY_AFTER),
        "410": ("The answer was not kept", None),
        "413": ("The request body is too large", None),
        "422": ("The Idempotency-Key names another request", None),
        "503": ("The idempotency store is unavailable", _RETRY_AFTER),
    }
    if policy.expiry == "refuse":
        found["410"] = ("The Idempotency-Key has expired, or the answer was not kept", None)
    if policy.quota is not None:
        found["429"] = ("The caller has as many requests as it may have", _RETRY_AFTER)
    return found
