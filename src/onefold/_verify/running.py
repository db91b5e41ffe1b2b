"""Runs the checks: first whether the API takes valid requests at all, then one check after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from onefold._verify.answers import cut, same_answer
from onefold._verify.catalogue import ProbeCheck
from onefold._verify.findings import (
    CheckFinding,
    NotApplicable,
    Outcome,
    ProbeReport,
    Untold,
    UnusableTarget,
    Violation,
)
from onefold._verify.http_port import ProbeAnswer
from onefold._verify.probing import ABOUT_PACE, ABOUT_RIGHTS, Probe

#: Requests of `establish`.
FIRST_REQUESTS: Final = 3

#: Redirects that repeat the request elsewhere. (302 and 303 may be the answer itself: what was made is there.)
_MOVED: Final = frozenset({301, 307, 308})


_FAILED: Final = "the server failed: see its log"


def requests_max(checks: Sequence[ProbeCheck], duplicates: int) -> int:
    """The most requests that a run sends."""
    most = sum(check.requests + check.together * duplicates for check in checks)
    return most + FIRST_REQUESTS if most else 0


def establish(probe: Probe) -> None:
    """Find out what the API accepts without a retry, and whether its answers distinguish executions. Raises
    UnusableTarget.

    Without this an API that refuses everything would pass all checks that want a refusal.
    """
    probe.allow(FIRST_REQUESTS)
    request = probe.new_request()
    try:
        first = probe.send(request, "a request with a new key")
        _require_taken(probe, first)
        again = probe.send(probe.request(request.body, probe.profile.spell(probe.around.new_key())), "another key")
        if not again.succeeded and not probe.payloads.distinct:
            raise UnusableTarget(
                f"the same payload with another key is answered {again.status}: write {{{{unique}}}} or {{{{n}}}} into "
                "--body, so that each request is about something else"
            )
        # A refusal of the payload counts, too: a second execution is refused where a replay is not.
        is_comparable = again.status < 500 and again.status not in ABOUT_PACE | ABOUT_RIGHTS
        probe.answers_differ = is_comparable and not same_answer(first, again)
        places = first.header("location"), again.header("location")
        probe.locations_differ = None not in places and places[0] != places[1]
        other = probe.payloads.other(request.body)
        if other is not None:
            new = probe.request(other, probe.profile.spell(probe.around.new_key()))
            answer = probe.send(new, "another payload, with a new key")
            if not answer.succeeded:
                hint = _FAILED if answer.status >= 500 else "give --other-body"
                probe.other_payload_refused = f"it is answered {answer.status}; {hint}"
    except Violation as error:
        raise UnusableTarget(str(error)) from error


def _require_taken(probe: Probe, first: ProbeAnswer) -> None:
    if first.status in _MOVED:
        address = cut(probe.around.hide(first.header("location") or "another address"))
        raise UnusableTarget(f"a request was answered {first.status}, and sent on to {address}: give that address")
    if not first.succeeded:
        body = cut(probe.around.hide(first.body.decode("utf-8", "replace")))
        answered = " ".join(filter(None, [str(first.status), body]))
        raise UnusableTarget(f"a request with a new key was answered {answered}: {_advise(first.status)}")


def _advise(status: int) -> str:
    if status >= 500:
        return _FAILED
    if status in (401, 403):
        return "give --header with credentials that may do this, e.g. --header 'Authorization: ...'"
    return "check --body, --header and --method; for an API that takes keys without quotes: --profile stripe"


def run(
    probe: Probe,
    checks: Sequence[ProbeCheck],
    *,
    left_out: Sequence[tuple[ProbeCheck, str]],
    shown: str,
    run_id: str,
    now: Callable[[], float],
    on_check: Callable[[str], None],
) -> ProbeReport:
    """Run all checks, in order. A failed one does not stop the others."""
    started = now()
    findings = [_finding(check, "skipped", reason) for check, reason in left_out]
    unusable = None
    try:
        if requests_max(checks, probe.target.duplicates):
            establish(probe)
        for check in checks:
            on_check(check.name)
            findings.append(_run_check(probe, check))
    except UnusableTarget as error:
        unusable = str(error)
    return ProbeReport(
        target=shown,
        profile=probe.profile.name,
        run=run_id,
        started_at_s=started,
        duration_s=now() - started,
        requests=probe.requests,
        requests_max=requests_max(checks, probe.target.duplicates),
        counted=probe.around.count is not None,
        findings=tuple(findings),
        unusable=unusable,
    )


def _run_check(probe: Probe, check: ProbeCheck) -> CheckFinding:
    if check.of_replays and probe.runs_again:
        return _finding(check, "skipped", "retries run again, so that there is no replay to compare with: see replay")
    probe.allow(check.requests + check.together * probe.target.duplicates)
    try:
        return _finding(check, "passed", check.run(probe))
    except Violation as violation:
        failed = _finding(check, "failed", str(violation))
        return replace(
            failed,
            why=violation.why or check.why,
            advice=violation.advice or check.advice,
            exchanges=probe.exchanges,
        )
    except NotApplicable as reason:
        return replace(_finding(check, "skipped", str(reason)), untold=isinstance(reason, Untold))


def _finding(check: ProbeCheck, outcome: Outcome, seen: str) -> CheckFinding:
    return CheckFinding(
        check=check.name, promise=check.promise, why=check.why, advice=check.advice, outcome=outcome, seen=seen
    )
