"""Each check finds the defect that is planted for it, and only that check does; an API without one passes all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onefold._verify.answers import exchange
from onefold._verify.catalogue import CHECKS
from onefold._verify.credentials import Secrets
from onefold._verify.http_port import NoAnswer, ProbeAnswer, ProbeRequest, Reply
from onefold._verify.reports.text_report import text, verdict_line
from tests.verify.model_api import DEFECTS, ModelApi
from tests.verify.probes import ACME, names, probe


def test_an_api_that_keeps_the_contract_passes_every_check() -> None:
    report = probe(ModelApi())
    assert [(finding.check, finding.seen) for finding in report.of("failed")] == []
    assert names(report, "skipped") == ["replay-mark", "redelivery"]
    assert report.verdict == "passed"


#: What answers alone cannot show.
COUNTED_ONLY = {"runs and refuses"}


@pytest.mark.parametrize(
    ("defect", "check", "counted"),
    [
        (defect, check, counted)
        for defect, check in DEFECTS.items()
        for counted in (True, False)
        if counted or defect not in COUNTED_ONLY
    ],
)
def test_a_planted_defect_is_found_by_its_check_alone(defect: str, check: str, counted: bool) -> None:
    report = probe(ModelApi(frozenset({defect})), counted=counted)
    assert {finding.check: finding.seen for finding in report.of("failed")}.keys() == {check}
    [finding] = report.of("failed")
    assert finding.exchanges
    assert report.verdict == "failed"


def test_every_check_that_sends_requests_has_a_defect_that_it_must_find() -> None:
    sending = {check.name for check in CHECKS if check.requests or check.together}
    assert sending == set(DEFECTS.values()) | {"replay-mark"}


def test_an_api_in_the_manner_of_stripe_passes_its_profile() -> None:
    report = probe(ModelApi(stripe=True, key_optional=True))
    assert [(finding.check, finding.seen) for finding in report.of("failed")] == []
    assert {"replay-mark", "parallel", "mismatch", "mismatch-in-flight", "key-length", "problem-bodies"} <= set(
        names(report, "passed")
    )
    assert {"key-types", "key-missing", "retry-after"} <= set(names(report, "skipped"))


@pytest.mark.parametrize("defect", ["answers once", "no lock", "compares payloads in flight only", "no principal"])
def test_the_profile_of_stripe_finds_defects_too(defect: str) -> None:
    report = probe(ModelApi(frozenset({defect}), stripe=True, key_optional=True))
    assert names(report, "failed") == [DEFECTS[defect]]


def test_a_replay_without_its_mark_fails_the_profile_of_stripe_only() -> None:
    assert names(probe(ModelApi(stripe=True, key_optional=True, marks=False)), "failed") == ["replay-mark"]
    assert names(probe(ModelApi(marks=False)), "failed") == []


@pytest.mark.parametrize("defect", ["no principal", "no route", "answers once", "no lock", "keeps keys for ever"])
def test_where_all_answers_are_alike_a_count_finds_what_they_hide(defect: str) -> None:
    """Without one such a check is skipped; it never claims what it did not see."""
    plain = ModelApi(frozenset({defect}), answers_alike=True, marks=False)
    assert names(probe(plain), "failed") == [DEFECTS[defect]]
    blind = ModelApi(frozenset({defect}), answers_alike=True, marks=False)
    report = probe(blind, counted=False)
    assert names(report, "failed") == []
    [finding] = [finding for finding in report.findings if finding.check == DEFECTS[defect]]
    assert finding.outcome == "skipped"
    assert "give --count" in finding.seen
    assert report.verdict == "untold"


#: They ask whether a retry has run: an execution with the same answer looks like a replay.
ABOUT_RETRIES = {
    *("replay", "byte-identity", "replay-headers", "unrelated-headers", "cookies", "parallel"),
    *("key-bare", "key-parameters", "key-hostile"),
}


@pytest.mark.parametrize("canary", [False, True])
def test_an_api_that_runs_every_retry_and_always_answers_the_same_is_not_told_to_keep_the_contract(
    canary: bool,
) -> None:
    api = ModelApi(frozenset({"runs every retry"}), answers_alike=True, marks=False)
    report = probe(api, counted=False, canary=canary)
    assert not ABOUT_RETRIES & set(names(report, "passed"))
    assert report.verdict == "untold"
    skipped = {finding.check: finding.seen for finding in report.of("skipped")}
    for check in ABOUT_RETRIES & skipped.keys():
        assert "give --count" in skipped[check], check
    first_line = verdict_line(report)
    assert first_line.startswith("UNDECIDED: ")
    assert "--count" in first_line
    assert "keeps the contract" not in text(report)
    assert names(probe(api, canary=canary), "failed")[0] == "replay"


def test_answers_alike_are_told_by_the_mark_of_replays_or_by_where_the_first_one_is() -> None:
    for api in (ModelApi(answers_alike=True), ModelApi(answers_alike=True, located=True, marks=False)):
        report = probe(api, counted=False, other_headers=(), other_url=None, expiry_s=None)
        assert names(report, "failed") == []
        assert set(names(report, "passed")) >= ABOUT_RETRIES
    located = ModelApi(frozenset({"runs every retry"}), answers_alike=True, located=True, marks=False)
    assert {"replay", "parallel"} <= set(names(probe(located, counted=False), "failed"))


def test_keys_that_are_cut_are_found_by_an_answer_that_belongs_to_another_key() -> None:
    for counted in (True, False):
        defects = frozenset({"cuts keys", "compares payloads in flight only"})
        assert "key-length" in names(probe(ModelApi(defects, marks=False), counted=counted), "failed")
    alike = ModelApi(defects, marks=False, answers_alike=True)
    assert "key-length" in names(probe(alike), "failed")
    assert "key-length" in names(probe(alike, counted=False), "skipped")


@pytest.mark.parametrize("counted", [True, False])
def test_where_retries_run_again_checks_of_replays_are_skipped_with_that_reason(counted: bool) -> None:
    report = probe(ModelApi(frozenset({"runs every retry"})), counted=counted)
    skipped = {finding.check: finding.seen for finding in report.of("skipped")}
    for check in ("byte-identity", "replay-headers", "key-length", "key-parameters", "other-principal", "expiry"):
        assert "retries run again" in skipped[check], check
    assert names(report, "failed")[0] == "replay"
    hostile = probe(ModelApi(frozenset({"runs every retry", "concatenates SQL"})), counted=counted)
    assert "key-hostile" in names(hostile, "failed"), "what a key does to the server is found all the same"


@pytest.mark.parametrize(
    ("status", "said", "unsaid"),
    [
        (500, "the server failed: see its log", "--body"),
        (503, "the server failed: see its log", "--profile"),
        (401, "give --header with credentials", "--body"),
        (403, "give --header with credentials", "--body"),
        (422, "check --body", "its log"),
    ],
)
def test_a_target_that_cannot_be_tested_is_told_with_what_helps(status: int, said: str, unsaid: str) -> None:
    report = probe(ModelApi(fails_with=status))
    assert report.verdict == "unusable"
    assert said in (report.unusable or "")
    assert unsaid not in (report.unusable or "")


def test_a_missing_key_that_is_refused_otherwise_is_told_so() -> None:
    [finding] = probe(ModelApi(missing_key=422), only=("key-missing",)).of("failed")
    assert "run twice" not in finding.why
    assert "is refused" in finding.why
    assert "400" in finding.advice
    [run] = probe(ModelApi(frozenset({"runs without a key"})), only=("key-missing",)).of("failed")
    assert "run twice" in run.why


def test_nothing_more_is_sent_than_was_announced() -> None:
    for defect in [None, *DEFECTS]:
        api = ModelApi(frozenset({defect} if defect else ()))
        report = probe(api)
        assert len(api.requests) == report.requests <= report.requests_max


def test_each_intent_has_a_key_of_its_own() -> None:
    api = ModelApi()
    probe(api)
    sent = [
        {value for name, value in request.headers if name == "Idempotency-Key"}
        for request in api.requests
        if request.body
    ]
    assert len({key for keys in sent for key in keys}) > 25


def test_an_api_that_refuses_what_it_is_sent_is_unusable_and_not_tested() -> None:
    report = probe(ModelApi(), template='{"thing": 1}')
    assert report.verdict == "unusable"
    assert report.unusable is not None
    assert "answered 400" in report.unusable
    assert "--body" in report.unusable
    assert report.requests <= 3


def test_a_payload_without_marks_is_varied_for_the_mismatch() -> None:
    report = probe(ModelApi(), template='{"item": "book", "n": 1}')
    assert names(report, "failed") == []
    assert "mismatch" in names(report, "passed")
    assert names(
        probe(ModelApi(frozenset({"compares payloads in flight only"})), template='{"item": 1}'), "failed"
    ) == ["mismatch"]


def test_another_payload_that_is_refused_by_itself_proves_nothing() -> None:
    """An API that validates first would pass by its validation error."""
    report = probe(ModelApi(), template='{"item": "book"}', other='{"thing": 1}')
    skipped = {finding.check: finding.seen for finding in report.of("skipped")}
    assert {"mismatch", "mismatch-in-flight", "key-length"} <= skipped.keys()
    assert "refused by itself" in skipped["mismatch"]


@pytest.mark.parametrize("counted", [True, False])
def test_what_an_application_takes_once_only_is_not_taken_for_a_key_that_is_shared(counted: bool) -> None:
    """A slot that is taken is 409 for the next principal under any key."""
    report = probe(ModelApi(taken_once=True), counted=counted)
    assert [finding.seen for finding in report.of("failed")] == []
    assert {"other-principal", "other-route"} <= set(names(report, "passed"))


@pytest.mark.parametrize("defect", ["no principal", "no route", "one key for all payloads"])
@pytest.mark.parametrize("marks", [True, False])
def test_a_key_that_is_shared_is_found_where_the_application_takes_a_payload_once_only(
    defect: str, marks: bool
) -> None:
    defects = {defect}
    if defect == "one key for all payloads":
        defects = {"no principal", "compares payloads in flight only"}
    report = probe(ModelApi(frozenset(defects), taken_once=True, marks=marks))
    assert DEFECTS.get(defect, "other-principal") in names(report, "failed")


def test_an_expired_key_that_is_refused_is_found_by_a_new_key_which_is_not() -> None:
    class Blocking(ModelApi):
        def _refuse(self, status: int, name: str) -> ProbeAnswer:
            return super()._refuse(409 if status == 410 else status, name)

    [finding] = probe(Blocking(refuses_expired=True)).of("failed")
    assert finding.seen == "an expired key was answered 409: it must run, or be refused with 410"


def test_a_payload_that_is_taken_once_and_cannot_be_varied_leaves_the_question_open() -> None:
    report = probe(ModelApi(taken_once=True), template='{"item": "{{unique}}"}', other='{"thing": 1}')
    [finding] = [finding for finding in report.findings if finding.check == "other-principal"]
    assert finding.outcome == "skipped"
    assert "refused to the other principal with a key of its own, too (409)" in finding.seen
    assert "--other-body" in finding.seen


def test_a_check_says_which_option_it_needs() -> None:
    report = probe(ModelApi(), other_headers=(), other_url=None, expiry_s=None)
    skipped = {finding.check: finding.seen for finding in report.of("skipped")}
    assert "--other-header" in skipped["other-principal"]
    assert "--other-url" in skipped["other-route"]
    assert "--expiry" in skipped["expiry"]
    assert "--publish" in skipped["redelivery"]


@pytest.mark.parametrize("again", [True, False])
def test_a_message_that_is_handled_twice_is_found(again: bool) -> None:
    api = ModelApi()
    handled: set[str] = set()

    def deliver(message: str) -> None:
        if again or message not in handled:
            api.rows.append(message)
        handled.add(message)

    report = probe(api, only=("redelivery",), publish=deliver)
    assert (report.verdict, report.requests) == ("failed" if again else "passed", 0)
    assert len(handled) == 2


def test_a_message_that_is_never_handled_is_found() -> None:
    report = probe(ModelApi(), only=("redelivery",), publish=lambda _: None)
    [finding] = report.of("failed")
    assert "does the consumer run?" in finding.seen


def test_a_canary_is_short() -> None:
    report = probe(ModelApi(), canary=True)
    assert names(report, "passed") == ["replay", "byte-identity", "mismatch", "parallel"]
    assert report.requests_max <= 39


def test_an_expired_key_may_be_refused_and_must_not_run_then() -> None:
    assert names(probe(ModelApi(refuses_expired=True)), "failed") == []
    ill = ModelApi(frozenset({"runs and refuses"}), refuses_expired=True)
    [finding] = probe(ill, only=("expiry",)).of("failed")
    assert "ran none the less" in finding.seen


def test_a_target_that_sends_requests_elsewhere_is_not_judged_by_its_redirects() -> None:
    report = probe(ModelApi(moved=True))
    assert report.verdict == "unusable"
    assert "/orders/: give that address" in (report.unusable or "")


def test_a_payload_that_can_be_sent_once_only_is_told_before_any_check_fails_by_it() -> None:
    report = probe(ModelApi(unique_items=True), template='{"item": "book"}')
    assert (report.verdict, len(report.of("failed"))) == ("unusable", 0)
    assert "{{unique}}" in (report.unusable or "")


class Late(ModelApi):
    """What it is asked for happens when time goes by."""

    happened = 0

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        if seconds:
            self.happened = len(self.rows)

    def count(self) -> int:
        return self.happened


def test_effects_that_come_later_are_counted_later() -> None:
    assert names(probe(Late(), only=("key-parameters",), count_delay_s=5.0), "failed") == []
    [finding] = probe(Late(), only=("key-parameters",)).of("failed")
    assert "rose by 0" in finding.seen


def test_credentials_are_hidden_before_a_text_is_cut() -> None:
    """Half of one would be left at the end."""
    request = ProbeRequest(method="POST", url="", headers=(), body=b"x" * 290 + b" sk-acme-secret")
    answer = ProbeAnswer(status=200, body=request.body)
    shown = exchange(request, answer, "Idempotency-Key", "first", Secrets([ACME]).hide_in)
    assert "sk-acme" not in shown.sent + shown.came


class Lost(ModelApi):
    """Gone after some requests."""

    def send(self, requests: Sequence[ProbeRequest], /) -> list[Reply]:
        if len(self.requests) >= 7:
            return [NoAnswer(reason="it cannot be reached", connected=False) for _ in requests]
        return super().send(requests)


def test_a_failure_before_the_target_was_lost_is_still_a_failure_and_both_are_said() -> None:
    report = probe(Lost(frozenset({"answers once"})))
    assert report.verdict == "failed"
    assert "stopped before the last check: it cannot be reached" in text(report)
