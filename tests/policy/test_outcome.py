"""Whose fault it was."""

from __future__ import annotations

import pytest

from onefold._policy.outcome import Answered, Outcome, Unanswered, Verdict, verdict
from onefold.errors import KeyInFlight


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        *((Answered(status=status), Verdict.SUCCESS) for status in (200, 201, 204, 302, 304)),
        *((Answered(status=status), Verdict.SUCCESS) for status in (400, 401, 403, 404, 409, 410, 422, 451)),
        *((Answered(status=status), Verdict.NEITHER) for status in (408, 425, 429, 501)),
        *((Answered(status=status), Verdict.FAILURE) for status in (500, 502, 503, 504, 599)),
        (Unanswered(maybe_sent=True), Verdict.FAILURE),
        (Unanswered(maybe_sent=False), Verdict.FAILURE),
    ],
    ids=str,
)
def test_only_what_is_the_fault_of_the_server_counts_against_it(outcome: Outcome, expected: Verdict) -> None:
    assert verdict(outcome) is expected


@pytest.mark.parametrize(
    ("status", "problem_type", "in_flight"),
    [
        pytest.param(409, f"https://example.com/problems/{KeyInFlight.slug}", True, id="a page"),
        pytest.param(409, f"urn:onefold:{KeyInFlight.slug}", True, id="a name"),
        pytest.param(409, None, False, id="a conflict without a problem"),
        pytest.param(409, "https://example.com/problems/version-conflict", False, id="another conflict"),
        pytest.param(409, f"https://example.com/{KeyInFlight.slug}/faq", False, id="another page"),
        pytest.param(422, f"urn:onefold:{KeyInFlight.slug}", False, id="another status"),
    ],
)
def test_in_flight_is_a_409_whose_problem_says_so(status: int, problem_type: str | None, in_flight: bool) -> None:
    assert Answered(status=status, problem_type=problem_type).in_flight is in_flight
