"""The checker finds each planted violation, says which it is, and is silent on every history that may happen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from onefold._http.problems import problem
from onefold.errors import KeyExpired, KeyInFlight, KeyReused, OutcomeUnknown, StoreBusy
from tests.support.invariants import Attempt, Effected, Held, Reply, Verdict, fence_violations, violations

PAID = Reply(201, ((b"content-type", b"application/json"), (b"location", b"/payments/1")), b'{"payment": 1}')
PAID_AGAIN = Reply(201, PAID.headers, b'{"payment": 2}')
MOVED = Reply(201, ((b"content-type", b"application/json"), (b"location", b"/payments/2")), PAID.body)
REPLAYED = Reply(201, (*PAID.headers, (b"idempotent-replayed", b"true"), (b"content-length", b"14")), PAID.body)
WITH_COOKIE = Reply(201, (*PAID.headers, (b"set-cookie", b"a=b")), PAID.body)
DECLINED = Reply(402, (), b"no")
BROKEN = Reply(500)


def refusal(error: Any) -> Reply:
    response = problem(error("why"))
    return Reply(response.status, response.headers, response.body)


WAIT = refusal(KeyInFlight)
REUSED = refusal(KeyReused)
EXPIRED = refusal(KeyExpired)
BUSY = refusal(StoreBusy)
UNKNOWN = refusal(OutcomeUnknown)

ROW = Effected("k", "p")
OTHER_ROW = Effected("k", "q")


def seen(*replies: Reply | None, payload: str = "p") -> list[Attempt]:
    return [Attempt(key="k", payload=payload, reply=reply) for reply in replies]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    attempts: list[Attempt]
    rows: list[Effected] = field(default_factory=list)
    #: What the one sentence must say; None: there is none.
    says: str | None = None


HISTORIES = {
    "nothing": History(attempts=[]),
    "paid": History(attempts=seen(PAID), rows=[ROW]),
    "paid and replayed": History(attempts=seen(PAID, REPLAYED), rows=[ROW]),
    "paid, and a cookie is not replayed": History(attempts=seen(WITH_COOKIE, REPLAYED), rows=[ROW]),
    "no answer, then a replay": History(attempts=seen(None, REPLAYED), rows=[ROW]),
    "busy, broken, unknown, in flight, then paid": History(
        attempts=seen(BUSY, BROKEN, UNKNOWN, WAIT, PAID), rows=[ROW]
    ),
    "declined": History(attempts=seen(DECLINED, DECLINED)),
    "refused for another payload": History(attempts=[*seen(PAID), *seen(REUSED, payload="q")], rows=[ROW]),
    "too late": History(attempts=seen(EXPIRED)),
    "acknowledged and lost": History(attempts=seen(PAID), says="acknowledged and has 0 rows"),
    "acknowledged for another payload": History(
        attempts=[*seen(REUSED), *seen(PAID, payload="q")], rows=[ROW], says="acknowledged and has 0 rows"
    ),
    "done twice": History(attempts=seen(PAID), rows=[ROW, ROW], says="has 2 rows"),
    "done twice without an acknowledgement": History(
        attempts=seen(None, EXPIRED), rows=[ROW, ROW], says="at most 1 may ever be there"
    ),
    "done once for each of two payloads": History(
        attempts=[*seen(PAID), *seen(REUSED, payload="q")], rows=[ROW, OTHER_ROW], says="has 2 rows"
    ),
    "declined and done": History(attempts=seen(DECLINED), rows=[ROW], says="declined with 402 and has a row"),
    "nobody asked": History(attempts=[], rows=[ROW], says="which nobody asked for"),
    "another body": History(attempts=seen(PAID, PAID_AGAIN), rows=[ROW], says="and then"),
    "another kept header": History(attempts=seen(PAID, MOVED), rows=[ROW], says="and then"),
    "another status": History(attempts=seen(DECLINED, Reply(404, (), b"no")), says="and then"),
    "declined, then paid": History(attempts=seen(DECLINED, PAID), rows=[ROW], says="and then"),
    "two owners": History(
        attempts=[*seen(PAID), *seen(DECLINED, payload="q")], rows=[ROW], says="answered for two payloads"
    ),
    "reused by nobody": History(attempts=seen(REUSED), says="names another request, and there is none"),
    "still in flight": History(attempts=seen(BUSY, WAIT), says="never got a final answer; its last one was 409"),
    "never answered": History(attempts=seen(None), says="never got a final answer; its last one was none"),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_judged_as_it_deserves(name: str) -> None:
    history = HISTORIES[name]
    found = violations(history.attempts, history.rows)
    if history.says is None:
        assert found == []
    else:
        assert any(history.says in sentence for sentence in found), found


VERDICTS: list[tuple[Reply, Verdict]] = [
    (PAID, "done"),
    (Reply(303), "done"),
    (DECLINED, "declined"),
    (Reply(409, (), b"the application's own"), "declined"),
    (Reply(422, ((b"content-type", b"application/problem+json"),), b'{"type": "about:blank"}'), "declined"),
    (Reply(401), "again"),
    (Reply(429), "again"),
    (BROKEN, "again"),
    (BUSY, "again"),
    (UNKNOWN, "again"),
    (WAIT, "in_flight"),
    (REUSED, "reused"),
    (EXPIRED, "gone"),
]


@pytest.mark.parametrize(("reply", "verdict"), VERDICTS)
def test_an_answer_is_read_as_it_is_meant(reply: Reply, verdict: Verdict) -> None:
    assert reply.verdict == verdict


# --- the lease ------------------------------------------------------------------------------------------------


def at(begun_s: float, ended_s: float, reply: Reply | None) -> Attempt:
    return Attempt(key="k", payload="p", reply=reply, begun_s=begun_s, ended_s=ended_s)


def locked_out(*attempts: Attempt) -> bool:
    found = violations(attempts, [ROW], lease_s=2.0, margin_s=1.0)
    return any("nobody had worked on it" in sentence for sentence in found)


def test_waiting_for_someone_who_works_is_right_however_long_it_takes() -> None:
    assert not locked_out(at(0, 100, PAID), at(99, 99, WAIT), at(101, 101, REPLAYED))


def test_waiting_for_someone_who_was_lost_is_right_until_the_lease_is_over() -> None:
    assert not locked_out(at(0, 0, None), at(2.9, 2.9, WAIT), at(4, 4, PAID))


def test_waiting_for_someone_who_was_lost_longer_ago_than_the_lease_is_found() -> None:
    assert locked_out(at(0, 0, None), at(3.1, 3.1, WAIT), at(4, 4, PAID))


def test_those_who_wait_do_not_keep_each_other_waiting() -> None:
    assert locked_out(at(0, 0, None), at(2, 2, WAIT), at(4, 4, WAIT), at(5, 5, PAID))


def test_waiting_for_nobody_at_all_is_found() -> None:
    assert locked_out(at(0, 0, WAIT), at(10, 10, PAID))


# --- the fence ------------------------------------------------------------------------------------------------


def test_who_holds_the_key_may_settle() -> None:
    log = [Held("granted", "k", "a"), Held("settled", "k", "a"), Held("granted", "j", "b"), Held("settled", "j", "b")]
    assert fence_violations(log) == []


def test_who_lost_the_key_to_another_must_not_settle() -> None:
    [sentence] = fence_violations([Held("granted", "k", "a"), Held("granted", "k", "b"), Held("settled", "k", "a")])
    assert sentence == "a settled key 'k' after b had taken it over"


def test_who_never_held_the_key_must_not_settle() -> None:
    assert fence_violations([Held("settled", "k", "a")])


def test_a_large_history_is_judged_in_one_pass() -> None:
    attempts = [Attempt(key=str(n), payload="p", reply=PAID) for n in range(20_000)]
    rows = [Effected(str(n), "p") for n in range(20_000)]
    assert violations(attempts, rows, lease_s=1.0) == []
    assert len(violations(attempts, rows[1:])) == 1
