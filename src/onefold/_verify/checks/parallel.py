"""Of many duplicates at the same time one runs; the others wait for its answer, or are refused until later."""

from __future__ import annotations

from typing import Final

from onefold._verify.answers import is_marked, same_answer
from onefold._verify.findings import NotApplicable, Violation
from onefold._verify.http_port import ProbeAnswer
from onefold._verify.probing import ABOUT_PACE, Probe

#: One may pass by luck: duplicates that do not meet are only retries.
ROUNDS: Final = 3


def check_parallel(probe: Probe) -> str:
    rounds = [_run_duplicates(probe) for _ in range(ROUNDS)]
    return f"{probe.target.duplicates} duplicates at once, {ROUNDS} times: {'; '.join(rounds)}"


def _run_duplicates(probe: Probe) -> str:
    probe.begin_round()
    request = probe.new_request()
    duplicates = probe.target.duplicates
    with probe.effects(1, f"{duplicates} duplicates at once"):
        answers = probe.send_together([request] * duplicates, "at once: duplicates")
        succeeded = sorted((answer for answer in answers if answer.succeeded), key=is_marked)
        ran = _different(probe, succeeded)
        if len(ran) > 1:
            raise Violation(f"{duplicates} duplicates at once got {len(ran)} different answers: it ran that often")
        if not ran:
            raise Violation(f"none of {duplicates} duplicates succeeded: {_statuses(answers)}")
        wrong = [answer for answer in answers if not _may_lose(probe, answer)]
        if wrong:
            raise Violation(f"duplicates in flight were answered {_statuses(wrong)}, and not 409 or the first answer")
        retry = probe.send(request, "retry afterwards")
        if not same_answer(ran[0], retry) or probe.is_replay(ran[0], retry) is False:
            raise Violation(f"the retry afterwards was answered {retry.status}, and not with the first answer")
        if any(probe.is_replay(ran[0], answer) is None for answer in (*succeeded[1:], retry)):
            probe.require_count()
    return _statuses(answers)


def check_retry_after(probe: Probe) -> str:
    request = probe.new_request()
    answers = probe.send_together([request] * probe.target.duplicates, "at once: duplicates")
    refused = [answer for answer in answers if answer.status in probe.profile.in_flight]
    if not refused:
        raise NotApplicable("no duplicate was refused in flight: the API waits, or was faster than the requests")
    silent = [answer for answer in refused if answer.header("retry-after") is None]
    if silent:
        raise Violation(f"{len(silent)} of {len(refused)} refusals in flight have no Retry-After")
    return f"{len(refused)} refusals in flight have a Retry-After"


def _may_lose(probe: Probe, answer: ProbeAnswer) -> bool:
    # 429 and 503 are about load, and say when to come again.
    paced = answer.status in ABOUT_PACE and answer.header("retry-after") is not None
    return answer.succeeded or answer.status in probe.profile.in_flight or paced


def _different(probe: Probe, answers: list[ProbeAnswer]) -> list[ProbeAnswer]:
    """One answer of each execution; a marked replay is no other execution."""
    distinct: list[ProbeAnswer] = []
    for answer in answers:
        if all(probe.is_replay(known, answer) is False for known in distinct):
            distinct.append(answer)
    return distinct


def _statuses(answers: list[ProbeAnswer]) -> str:
    statuses = [answer.status for answer in answers]
    return ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))
