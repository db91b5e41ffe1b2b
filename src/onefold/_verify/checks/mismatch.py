"""A key that comes with another payload is refused, before and after the first request is done."""

from __future__ import annotations

from typing import Final

from onefold._verify.answers import same_answer
from onefold._verify.findings import Violation
from onefold._verify.probing import ABOUT_PACE, Probe

ROUNDS: Final = 3


def check_mismatch(probe: Probe) -> str:
    request = probe.new_request()
    other = probe.with_other_payload(request)
    with probe.effects(1, "a request, and the same key with another payload"):
        first = probe.send_first(request)
        refused = probe.send(other, "same key, other payload")
        if refused.status not in probe.profile.mismatch:
            outcome = "it ran, or was given the first answer" if refused.succeeded else "it was refused otherwise"
            raise Violation(
                f"the other payload was answered {refused.status}, and not {_names(probe.profile.mismatch)}: {outcome}"
            )
        retry = probe.send(request, "the first payload again")
        if not same_answer(first, retry):
            raise Violation(f"the first answer did not stay: its own retry is now answered {retry.status}")
    stays = "the first answer stays"
    if probe.is_replay(first, retry) is None and probe.around.count is None:
        stays = "only --count can show whether the first answer stays"
    return f"the other payload was answered {refused.status}, and {stays}"


def check_mismatch_in_flight(probe: Probe) -> str:
    """Two payloads at once; which of them is first is the API's choice. It may be too fast to be met in flight, so
    there are several rounds."""
    for _ in range(ROUNDS):
        probe.begin_round()
        request = probe.new_request()
        pair = [request, probe.with_other_payload(request)]
        with probe.effects(1, "two payloads at once with one key"):
            answers = probe.send_together(pair, "at once: same key, two payloads")
            ran = [answer for answer in answers if answer.succeeded]
            if len(ran) != 1:
                statuses = " and ".join(str(answer.status) for answer in answers)
                raise Violation(f"two payloads at once were answered {statuses}: one of them must run, and one only")
            [refused] = [answer for answer in answers if not answer.succeeded]
            if refused.status not in probe.profile.mismatch_in_flight | ABOUT_PACE:
                raise Violation(
                    f"the other payload was answered {refused.status}, and not "
                    f"{_names(probe.profile.mismatch_in_flight)}: its client retries what can never succeed"
                )
    return f"in {ROUNDS} rounds one payload ran and the other was refused"


def _names(statuses: frozenset[int]) -> str:
    return " or ".join(map(str, sorted(statuses)))
