"""Refusals are machine-readable, and link to their documentation."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from onefold._verify.findings import NotApplicable, Violation
from onefold._verify.http_port import ProbeAnswer
from onefold._verify.probing import Probe


def check_problem_bodies(probe: Probe) -> str:
    refusals = _refusals(probe)
    if not probe.profile.problem_bodies:
        for name, answer in refusals.items():
            error = _object(answer).get("error")
            if not isinstance(error, dict) or not isinstance(error.get("type"), str):
                raise Violation(f"{name} ({answer.status}) has no JSON body with an error that has a type")
        return f"errors with a type: {', '.join(refusals)}"
    types = {}
    for name, answer in refusals.items():
        content = (answer.header("content-type") or "").partition(";")[0].strip().lower()
        if content != "application/problem+json":
            raise Violation(f"{name} ({answer.status}) is {content or 'without a type'}, not application/problem+json")
        body = _object(answer)
        missing = [member for member in ("type", "title") if not isinstance(body.get(member), str)]
        if missing:
            raise Violation(f"{name} ({answer.status}) is a problem without {' and '.join(missing)}")
        if body.get("status", answer.status) != answer.status:
            raise Violation(f"{name} ({answer.status}) says in its body that its status is {body['status']!r}")
        types[name] = body["type"]
    if len(set(types.values())) < len(types):
        raise Violation(f"{' and '.join(types)} have the same type: a client cannot tell them apart")
    return f"problems with a type and a title: {', '.join(refusals)}"


def check_problem_link(probe: Probe) -> str:
    for name, answer in _refusals(probe).items():
        resolvable = urlsplit(str(_object(answer).get("type", ""))).scheme in ("http", "https")
        links = ",".join(answer.header_lines("link")).replace(" ", "").replace('"', "").lower()
        if not resolvable and "rel=describedby" not in links:
            raise Violation(
                f'{name} ({answer.status}) has neither a type that is an address nor Link: rel="describedby"'
            )
    return "refusals link to their documentation"


def _refusals(probe: Probe) -> dict[str, ProbeAnswer]:
    """Refusals of two kinds, if the API makes them; whether it must is for other checks."""
    refusals = {}
    if not probe.target.key_optional:
        missing = probe.send(probe.request(probe.payloads.fresh()), "no key")
        if 400 <= missing.status < 500:
            refusals["the refusal of a missing key"] = missing
    request = probe.new_request()
    try:
        other = probe.with_other_payload(request)
    except NotApplicable:
        other = None
    if other is not None:
        probe.send_first(request)
        refused = probe.send(other, "same key, other payload")
        if 400 <= refused.status < 500:
            refusals["the refusal of another payload"] = refused
    if not refusals:
        raise NotApplicable("the API refused nothing, so that there is no refusal to check")
    return refusals


def _object(answer: ProbeAnswer) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
