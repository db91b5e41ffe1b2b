"""A key belongs to a principal and an operation: the same text is another key elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from onefold._verify.findings import NotApplicable, Violation
from onefold._verify.http_port import ProbeAnswer, ProbeRequest
from onefold._verify.probing import ABOUT_RIGHTS, KEY_HEADER, Probe

#: Parts of the names of headers that credentials travel in.
CREDENTIALS: Final = ("authorization", "cookie", "key", "token", "secret", "auth", "session")


def check_other_principal(probe: Probe) -> str:
    if not probe.target.other_headers:
        raise NotApplicable("give --other-header with the credentials of another principal")
    body, key = probe.payloads.fresh(), probe.profile.spell(probe.around.new_key())
    theirs = probe.request(body, key, headers=probe.target.other_headers)
    _require_accepted(probe, probe.new_request(headers=probe.target.other_headers), "the other principal's request")
    return _require_two(probe, probe.request(body, key), theirs, "the other principal")


def check_other_route(probe: Probe) -> str:
    if probe.target.other_url is None:
        raise NotApplicable("give --other-url with another route that takes the same payload")
    body, key = probe.payloads.fresh(), probe.profile.spell(probe.around.new_key())
    _require_accepted(probe, probe.new_request(url=probe.target.other_url), "the request to the other route")
    there = probe.request(body, key, url=probe.target.other_url)
    return _require_two(probe, probe.request(body, key), there, "the other route")


def check_no_credentials(probe: Probe) -> str:
    kept = tuple((name, value) for name, value in probe.target.headers if not is_credential(name))
    if kept == probe.target.headers:
        raise NotApplicable("no credentials were given: give --header 'Authorization: ...'")
    request = probe.new_request()
    first = probe.send_first(request)
    bare = ProbeRequest(
        method=request.method, url=request.url, headers=_without_credentials(request), body=request.body
    )
    answer = probe.send(bare, "retry without credentials")
    if not answer.succeeded:
        return f"a retry without credentials is answered {answer.status}"
    new = probe.new_request()
    open_to_all = probe.send(
        ProbeRequest(method=new.method, url=new.url, headers=_without_credentials(new), body=new.body),
        "a new key without credentials",
    )
    if open_to_all.succeeded:
        raise NotApplicable("the route runs without credentials")
    raise Violation(
        f"a retry without credentials was answered {answer.status}, a new request without them {open_to_all.status}: "
        f"the stored answer ({first.status}) is shown to those who may not see it"
    )


def is_credential(name: str) -> bool:
    """Whether a header of this name identifies the caller."""
    return any(part in name.lower() for part in CREDENTIALS)


def _without_credentials(request: ProbeRequest) -> tuple[tuple[str, bytes], ...]:
    return tuple(
        (name, value) for name, value in request.headers if name == "Idempotency-Key" or not is_credential(name)
    )


def _require_accepted(probe: Probe, request: ProbeRequest, what: str) -> None:
    answer = probe.send(request, f"{what}, with a key of its own")
    if not answer.succeeded:
        raise NotApplicable(f"{what} is answered {answer.status} by itself")


def _require_two(probe: Probe, ours: ProbeRequest, theirs: ProbeRequest, who: str) -> str:
    with probe.effects(2, f"the same key, of {who} as well"):
        first = probe.send_first(ours)
        second = probe.send(theirs, f"the same key, of {who}")
        if not second.succeeded:
            second = _send_with_other_payload(probe, theirs, second, who)
        replay = probe.is_replay(first, second)
        if replay is True:
            raise Violation(f"{who} was given the first answer: {second.status}, with the same content")
        if replay is None:
            probe.require_count()
    return f"{who} has a key of its own"


def _send_with_other_payload(probe: Probe, theirs: ProbeRequest, refused: ProbeAnswer, who: str) -> ProbeAnswer:
    """The same key was refused to them. Raise a Violation if it is the key that is refused, and not the payload, which
    the application may allow once only; then another payload with that key has to succeed."""
    blocked = f"the key that is in use blocks {who}: answered {refused.status}"
    if refused.status in ABOUT_RIGHTS:
        raise Violation(f"{blocked}; are its credentials still good?")
    lines = tuple(line for line in theirs.headers if line[0] != KEY_HEADER)
    own_key = replace(theirs, headers=(*lines, (KEY_HEADER, probe.profile.spell(probe.around.new_key()))))
    if probe.send(own_key, f"the same payload with a key of its own, of {who}").succeeded:
        raise Violation(blocked)
    try:
        varied = probe.with_other_payload(theirs)
    except NotApplicable as reason:
        raise NotApplicable(
            f"the payload is refused to {who} with a key of its own, too ({refused.status}): the application takes it "
            f"once, and says nothing about the key; {reason}"
        ) from reason
    answer = probe.send(varied, f"another payload with the same key, of {who}")
    if not answer.succeeded:
        raise Violation(f"the key that is in use blocks {who}: answered {answer.status}, with another payload as well")
    return answer
