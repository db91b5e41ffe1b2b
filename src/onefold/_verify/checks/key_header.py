"""The header: one intent has one key, and what could be read as two keys, or as none, is refused."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

from onefold._verify.findings import NotApplicable, Violation
from onefold._verify.probing import Probe

_LENGTHS: Final = (256, 10_000)
_HOSTILE: Final = ("'; DROP TABLE orders; --", "*{?}[a-z]:%00%s", "../../../etc/passwd", "${jndi:ldap://127.0.0.1/a}")

_REFUSED_OTHERWISE: Final = (
    "the request is refused, but not as the draft says: a client takes the status for another fault (422 is a key that "
    "was reused, 409 one in flight) and does the wrong thing about it"
)
_ANSWER_400: Final = (
    "answer 400; where the framework validates the header by itself (often with 422), check it before that, or map it"
)


def check_key_bare(probe: Probe) -> str:
    body, key = probe.payloads.fresh(), probe.around.new_key()
    with probe.effects(1, "a request and its retry without the quotes"):
        first = probe.send_first(probe.request(body, probe.profile.spell(key)))
        bare = probe.send(probe.request(body, key.encode()), "the key without its quotes")
        if bare.status == 400:
            return "a key without quotes is refused with 400"
        probe.require_replay(first, bare, "the key without its quotes")
    return "a key without quotes is the same key"


def check_key_types(probe: Probe) -> str:
    key = probe.around.new_key()
    return _require_400(
        probe,
        {
            "a boolean": (b"?1",),
            "a byte sequence": (b":" + b64encode(key.encode()) + b":",),
            "an inner list": (f'("{key}" "{key}")'.encode(),),
            "a list": (f'"{key}", "{key}-2"'.encode(),),
        },
    )


def check_key_malformed(probe: Probe) -> str:
    key = probe.around.new_key()
    return _require_400(
        probe,
        {
            "a missing quote": (f'"{key}'.encode(),),
            "a bad escape": (f'"{key}\\x"'.encode(),),
            "letters beyond ASCII": (f'"{key}é"'.encode(),),
            "a tab inside": (f'"{key}\tx"'.encode(),),
            "text after the quotes": (f'"{key}"x'.encode(),),
        },
    )


def check_key_parameters(probe: Probe) -> str:
    body, key = probe.payloads.fresh(), probe.profile.spell(probe.around.new_key())
    with probe.effects(1, "a request and its retry with parameters after the key"):
        first = probe.send_first(probe.request(body, key))
        retry = probe.send(probe.request(body, key + b";attempt=2"), "the key with parameters")
        probe.require_replay(first, retry, "the key with parameters")
    return "parameters after the key are ignored"


def check_key_repeated(probe: Probe) -> str:
    one, two = (probe.profile.spell(probe.around.new_key()) for _ in range(2))
    return _require_400(probe, {"two header lines": (one, two), "the same line twice": (one, one)})


def check_key_empty(probe: Probe) -> str:
    return _require_400(probe, {"an empty string": (b'""',), "an empty header": (b"",)})


def check_key_missing(probe: Probe) -> str:
    if probe.target.key_optional:
        raise NotApplicable("--key-optional: the route takes requests without a key")
    return _require_400(probe, {"no key": ()})


def check_key_length(probe: Probe) -> str:
    """Two keys that differ in their last character only."""
    seen = []
    for length in _LENGTHS:
        start = probe.around.new_key().ljust(length - 1, "k")
        request = probe.request(probe.payloads.fresh(), probe.profile.spell(f"{start}1"))
        other = probe.with_other_payload(probe.request(request.body, probe.profile.spell(f"{start}2")))
        first = probe.send(request, f"a key of {length} characters")
        if 400 <= first.status < 500:
            seen.append(f"{length} characters are refused with {first.status}")
            continue
        if not first.succeeded:
            raise Violation(f"a key of {length} characters was answered {first.status}")
        with probe.effects(1, f"another key of {length} characters, which differs in the last one"):
            second = probe.send(other, "another key, which differs in its last character")
            replay = probe.is_replay(first, second)
            if not second.succeeded or replay is True:
                raise Violation(
                    f"two keys of {length} characters that differ in the last one are the same key: the second was "
                    f"answered {second.status}"
                )
            if replay is None:
                probe.require_count()
        seen.append(f"{length} characters are read whole")
    return "; ".join(seen)


def check_key_hostile(probe: Probe) -> str:
    """Refused twice, or run and replayed."""
    untold = False
    for text in _HOSTILE:
        request = probe.request(probe.payloads.fresh(), probe.profile.spell(f"{probe.around.new_key()}{text}"))
        first = probe.send(request, "hostile key")
        if first.status >= 500:
            raise Violation(f"the key {text!r} was answered {first.status}")
        stored = first.succeeded and not probe.runs_again
        with probe.effects(0, f"the retry of the key {text!r}") if stored else nullcontext():
            second = probe.send(request, "its retry")
            if second.status >= 500:
                raise Violation(f"the retry of the key {text!r} was answered {second.status}")
            replay = probe.is_replay(first, second) if stored else True
            if replay is False:
                raise Violation(f"the key {text!r} is forgotten: {first.status}, then {second.status}, another answer")
            untold = untold or replay is None
    if probe.runs_again:
        return f"{len(_HOSTILE)} keys did no harm; whether they are known again was not looked at: retries run again"
    if untold:
        probe.require_count()
    return f"{len(_HOSTILE)} keys are data, or are refused"


def _require_400(probe: Probe, values: Mapping[str, tuple[bytes, ...]]) -> str:
    with probe.effects(0, "all of them must be refused"):
        wrong = {}
        for name, lines in values.items():
            answer = probe.send(probe.request(probe.payloads.fresh(), *lines), name)
            if answer.status != 400:
                wrong[name] = answer.status
        if wrong:
            seen = "; ".join(f"{name} was answered {status}" for name, status in wrong.items())
            refused = all(400 < status < 500 for status in wrong.values())
            raise Violation(
                f"{seen}: expected 400",
                why=_REFUSED_OTHERWISE if refused else None,
                advice=_ANSWER_400 if refused else None,
            )
    return f"400 for {', '.join(values)}"
