"""The OpenAPI description of idempotent operations: the header, the problems, the replay mark, the retention."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from onefold._http.idempotency_key import LENGTH_MAX, key_schema
from onefold._http.route_policy import Policy

if TYPE_CHECKING:
    from onefold._http.conditional import Conditional

#: By status: what it means, and its headers.
Problems: TypeAlias = dict[str, tuple[str, dict[str, Any] | None]]

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
            _add_problem_schema(document)


def _describe(operation: dict[str, Any], policy: Policy) -> None:
    parameters = operation.setdefault("parameters", [])
    if not any(p.get("name", "").lower() == "idempotency-key" for p in parameters):
        parameters.append(_parameter(policy))
    responses = operation.setdefault("responses", {})
    for status, response in responses.items():
        if status.startswith(("2", "3")):
            response.setdefault("headers", {}).update(_REPLAYED)
    _add_problems(operation, _problems(policy))
    if policy.conditional is not None:
        _describe_condition(operation, policy.conditional)
    operation["x-idempotency"] = {
        "required": policy.required,
        "retention_s": policy.retention_s,
        "expiry": policy.expiry,
        "in_flight_wait_s": policy.wait_s,
    }


def _add_problem_schema(document: dict[str, Any]) -> None:
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.setdefault("IdempotencyProblem", _PROBLEM_SCHEMA)


def _add_problems(operation: dict[str, Any], problems: Problems) -> None:
    responses = operation.setdefault("responses", {})
    for status, (meaning, headers) in problems.items():
        addition = {
            "description": meaning,
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/IdempotencyProblem"}}},
        } | ({"headers": headers} if headers else {})
        if status not in responses:
            responses[status] = addition
        else:  # the framework's own answer with this status (FastAPI's 422) stays beside ours
            responses[status].setdefault("content", {}).update(addition["content"])
            responses[status]["description"] += f". Or: {meaning}"


_ETAG = {
    "ETag": {"schema": {"type": "string"}, "description": "The state of the resource, for If-Match and If-None-Match."}
}

_NOT_IN_STATE = ("The resource is not in the state that the request depends on", _ETAG)

_TAGS = (
    "The ETag of the state that this request depends on, in double quotes; several with commas between; or `*`, for "
)


def describe_reads(document: dict[str, Any], paths: list[str]) -> None:
    """Add what conditional reads promise."""
    for template in paths:
        path = re.sub(r":[^{}]+\}", "}", template)
        operation = document.get("paths", {}).get(path, {}).get("get")
        if operation is not None:
            texts = {
                "If-Match": _TAGS + "whatever is there. 412 where the resource is in none of them.",
                "If-None-Match": _TAGS + "any state. 304 where the resource is in it.",
            }
            _add_condition(operation, texts, _ETAG)
            operation["responses"].setdefault(
                "304", {"description": "The resource is in the state that If-None-Match names", "headers": _ETAG}
            )
            _add_problems(operation, {"400": ("The condition is malformed", None), "412": _NOT_IN_STATE})
            _add_problem_schema(document)


def _describe_condition(operation: dict[str, Any], rules: Conditional) -> None:
    needed = " One of If-Match and If-None-Match is required (428)." if rules.required else ""
    texts = {
        "If-Match": _TAGS + "whatever is there. 412 where the resource is in none of them." + needed,
        "If-None-Match": _TAGS + "any state: create it only where it is not there. 412 where it is." + needed,
    }
    _add_condition(operation, texts, _ETAG)
    operation["x-conditional"] = {"required": rules.required, "repeatable_delete": rules.repeatable_delete}


def _add_condition(operation: dict[str, Any], texts: dict[str, str], headers: dict[str, Any]) -> None:
    from onefold._http.etags import BYTES_MAX, TAGS_PATTERN  # few applications have conditional routes

    parameters = operation.setdefault("parameters", [])
    present = {each.get("name", "").lower() for each in parameters}
    schema = {"type": "string", "maxLength": BYTES_MAX, "pattern": TAGS_PATTERN}
    parameters += [
        {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
        for name, text in texts.items()
        if name.lower() not in present
    ]
    for status, response in operation.setdefault("responses", {}).items():
        if status.startswith("2"):
            response.setdefault("headers", {}).update(headers)


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


def _problems(policy: Policy) -> Problems:
    found: Problems = {
        "400": ("The Idempotency-Key is missing or malformed", None),
        "409": ("The same request is in flight", _RETRY_AFTER),
        "410": ("The answer was not kept", None),
        "413": ("The request body is too large", None),
        "422": ("The Idempotency-Key names another request", None),
        "503": ("The idempotency store is unavailable", _RETRY_AFTER),
    }
    if policy.expiry == "refuse":
        found["410"] = ("The Idempotency-Key has expired, or the answer was not kept", None)
    if policy.conditional is not None:
        found["400"] = ("The Idempotency-Key is missing or malformed, or the condition is malformed", None)
        found["412"] = _NOT_IN_STATE
        if policy.conditional.required:
            found["428"] = ("The request has neither If-Match nor If-None-Match", None)
    if policy.quota is not None:
        found["429"] = ("The caller has reached its limit of requests", _RETRY_AFTER)
    return found
