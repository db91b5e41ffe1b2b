"""Profiles of APIs: the spelling of keys, and the statuses of refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A contract that APIs follow. A check that is `left_out` says why when it is skipped."""

    name: str
    quoted: bool
    """Whether a key is a Structured Field String, `"k"`, or an opaque text, `k`."""
    in_flight: frozenset[int]
    mismatch: frozenset[int]
    mismatch_in_flight: frozenset[int]
    problem_bodies: bool
    """Whether refusals are problems (RFC 9457), or Stripe's error objects."""
    left_out: Mapping[str, str]

    def spell(self, key: str) -> bytes:
        """The key as it stands in the header."""
        return f'"{key}"'.encode() if self.quoted else key.encode()


_OPAQUE: Final = "keys of this profile are opaque text"

IETF: Final = Profile(
    name="ietf",
    quoted=True,
    in_flight=frozenset({409}),
    mismatch=frozenset({422}),
    mismatch_in_flight=frozenset({422}),
    problem_bodies=True,
    left_out=MappingProxyType({"replay-mark": "the draft has no mark for replays"}),
)

STRIPE: Final = Profile(
    name="stripe",
    quoted=False,
    in_flight=frozenset({409}),
    # Stripe answers 400; similar APIs answer 409 or 422, too.
    mismatch=frozenset({400, 409, 422}),
    # A request in flight is refused before payloads are compared.
    mismatch_in_flight=frozenset({400, 409, 422}),
    problem_bodies=False,
    left_out=MappingProxyType(
        {
            "key-bare": _OPAQUE,
            "key-types": _OPAQUE,
            "key-malformed": _OPAQUE,
            "key-parameters": _OPAQUE,
            "key-repeated": "this profile says nothing about two header lines",
            "key-empty": "this profile says nothing about empty keys",
            "key-missing": "keys are optional in this profile",
            "retry-after": "this profile promises no Retry-After",
            "problem-link": "errors of this profile are not problems (RFC 9457)",
        }
    ),
)

PROFILES: Final = MappingProxyType({profile.name: profile for profile in (IETF, STRIPE)})
