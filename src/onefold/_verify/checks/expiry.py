"""A key is remembered for the published time, and then runs anew or is refused for good."""

from __future__ import annotations

from typing import Final

from onefold._verify.findings import NotApplicable, Violation
from onefold._verify.probing import Probe

#: Clocks that differ, and a reaper's turn.
_MARGIN_S: Final = 1.0


def check_expiry(probe: Probe) -> str:
    expiry_s = probe.target.expiry_s
    if expiry_s is None:
        raise NotApplicable("give --expiry with the seconds that the API says it remembers keys for")
    request = probe.new_request()
    with probe.effects(1, "a request and its retry before the key expires"):
        first = probe.send_first(request)
        probe.around.wait(expiry_s / 2)
        retry = probe.send(request, f"retry after {expiry_s / 2:g} s, half of the time")
        probe.require_replay(first, retry, f"a retry after {expiry_s / 2:g} s, within {expiry_s:g} s,")
    probe.around.wait(expiry_s / 2 + _MARGIN_S)
    before = probe.around.count() if probe.around.count is not None else 0
    late = probe.send(request, f"retry after {expiry_s:g} s")
    probe.around.wait(probe.target.count_delay_s)
    after = probe.around.count() if probe.around.count is not None else 0
    if late.status == 410:
        if after != before:
            raise Violation("the expired key was refused with 410, and ran none the less")
        return f"known for {expiry_s / 2:g} s; refused with 410 after {expiry_s:g} s"
    if not late.succeeded:
        new = probe.request(request.body, probe.profile.spell(probe.around.new_key()))
        if not (control := probe.send(new, "the same payload with a new key")).succeeded:
            raise NotApplicable(
                f"the payload is refused with a new key, too ({control.status}): the application takes it once, and "
                "its answer says nothing about the expired key"
            )
        raise Violation(f"an expired key was answered {late.status}: it must run, or be refused with 410")
    replay = probe.is_replay(first, late)
    if replay is None:
        probe.require_count()
        replay = after == before
    if replay:
        raise Violation(f"the answer was replayed after {expiry_s:g} s: it is kept for longer than published")
    return f"known for {expiry_s / 2:g} s; runs anew after {expiry_s:g} s"
