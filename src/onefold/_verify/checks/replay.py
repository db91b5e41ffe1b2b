"""A retry gets the first answer, byte for byte, and nothing happens again."""

from __future__ import annotations

from typing import Final

from onefold._verify.answers import is_marked
from onefold._verify.findings import NotApplicable, RanAgain, Violation
from onefold._verify.http_port import HeaderLines, ProbeAnswer
from onefold._verify.probing import Probe

_RETRIES: Final = 3
_HEADERS: Final = ("content-type", "location", "etag", "content-language", "content-encoding")
#: Of another attempt of the same intent: a new span, a new agent, another moment.
_UNRELATED: Final[HeaderLines] = (
    ("Traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("User-Agent", b"onefold-verify-retry"),
    ("X-Request-Id", b"another-attempt"),
    ("Date", b"Tue, 15 Nov 1994 08:12:31 GMT"),
)


def check_replay(probe: Probe) -> str:
    try:
        return _retry_several_times(probe)
    except RanAgain:
        probe.runs_again = True
        raise


def _retry_several_times(probe: Probe) -> str:
    request = probe.new_request()
    with probe.effects(1, f"1 request and {_RETRIES} retries"):
        first = probe.send_first(request)
        for number in range(1, _RETRIES + 1):
            retry = probe.send(request, f"retry {number}")
            if retry.status != first.status:
                raise Violation(f"retry {number} was answered {retry.status}, the first request {first.status}")
            replay = probe.is_replay(first, retry)
            if replay is False:
                raise RanAgain(f"retry {number} has another content or Location than the first answer: it ran again")
            if replay is None:
                probe.require_count()
    return f"{_RETRIES} retries were answered {first.status} with the first content"


def check_byte_identity(probe: Probe) -> str:
    first, retry = _retry(probe)
    if first.body != retry.body:
        raise Violation(
            f"the body of the replay differs from the first ({len(first.body)} and {len(retry.body)} bytes): the "
            "answer was made anew, or the request ran again"
        )
    return f"{len(first.body)} bytes, the same"


def check_replay_headers(probe: Probe) -> str:
    first, retry = _retry(probe)
    lost = [name for name in _HEADERS if first.header(name) != retry.header(name)]
    if lost:
        shown = "; ".join(f"{name}: {first.header(name)!r}, then {retry.header(name)!r}" for name in lost)
        raise Violation(f"headers of the replay differ: {shown}")
    return f"the same: {', '.join(name for name in _HEADERS if first.header(name) is not None) or 'there are none'}"


def check_replay_mark(probe: Probe) -> str:
    first, retry = _retry(probe)
    if is_marked(first):
        raise Violation("the first answer is marked as a replay")
    if not is_marked(retry):
        raise Violation("the retry has no Idempotent-Replayed: true")
    return "the retry is marked, the first answer is not"


def check_unrelated_headers(probe: Probe) -> str:
    body, key = probe.payloads.fresh(), probe.profile.spell(probe.around.new_key())
    with probe.effects(1, "a request and its retry with other tracing headers"):
        first = probe.send_first(probe.request(body, key))
        retry = probe.send(probe.request(body, key, headers=_UNRELATED), "retry with another span, agent and date")
        probe.require_replay(first, retry, "a retry with other tracing headers, agent and date")
    return "a retry with other tracing headers, agent and date was replayed"


def check_cookies(probe: Probe) -> str:
    """What must reach the first client only."""
    first, retry = _retry(probe)
    given = {name: set(first.header_lines(name)) for name in ("set-cookie", "www-authenticate", "authorization")}
    if not any(given.values()):
        raise NotApplicable("the first answer sets no cookie and has no challenge or token in its headers")
    for name, lines in given.items():
        # Compared by name and value: attributes such as Expires change between two answers.
        values = {line.partition(";")[0] for line in lines}
        if values & {line.partition(";")[0] for line in retry.header_lines(name)}:
            raise Violation(f"the replay repeats the {name} of the first answer")
    return "the replay does not repeat them"


def _retry(probe: Probe) -> tuple[ProbeAnswer, ProbeAnswer]:
    request = probe.new_request()
    first = probe.send_first(request)
    retry = probe.send(request, "retry")
    if retry.status != first.status:
        raise NotApplicable(f"the retry was answered {retry.status} and not replayed: see the check replay")
    if probe.is_replay(first, retry) is None:
        probe.require_count()
    return first, retry
