"""The outcome of a key, in words: its state, why, what a client gets with it now, and what ends that.

It predicts the answer of `_http/` (docs/http-contract.md) from what is stored and locked at this moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from onefold._idempotency.stored_keys import KeyHolder, KeyView
from onefold._kernel.audit import AuditLine
from onefold._kernel.readable import age, write_count
from onefold._steps.unfinished_works import WorkView

#: Of a search: whether the application has such a route. Unchecked: its routes are not known here. Digest: there was no
#: search, only an address.
RouteKnown: TypeAlias = Literal["known", "unknown", "unchecked", "digest"]

Tone: TypeAlias = Literal["good", "warn", "bad", "neutral"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyVerdict:
    """The state of a key, for people."""

    state: str
    tone: Tone
    what: str
    """What happened."""
    gets: str
    """What a client gets that sends the same request with it now."""
    way_out: str = ""
    """What ends this state, or what to do."""
    conflict: bool = False
    """Whether a client gets 409."""
    key: KeyView | None = None
    """The record that is meant, if it is one."""


def judge_key(
    keys: Sequence[KeyView],
    holder: KeyHolder | None,
    work: WorkView | None,
    *,
    route: RouteKnown = "known",
    erased: AuditLine | None = None,
) -> KeyVerdict:
    """Judge by the records, in this order: a stored answer, a running request, an abandoned work."""
    if (done := next((key for key in keys if key.state == "done"), None)) is not None:
        return _judge_done(done)
    if work is not None and work.state != "left":
        return _judge_work(work)
    if holder is not None:
        return _judge_holder(holder)
    if work is not None:
        return _judge_work(work)
    if (elsewhere := next((key for key in keys if key.state == "elsewhere"), None)) is not None:
        return KeyVerdict(
            state="Done under another name",
            tone="warn",
            what="A deploy that calls this route by another operation has done the request and has its answer.",
            gets="409 key-in-flight: this deploy cannot say how it ended.",
            way_out="It ends when the record expires. Search by the route's other name to see the answer.",
            conflict=True,
            key=elsewhere,
        )
    return _judge_absent(keys, route, erased)


#: A key of a call is derived from the message and the step, and neither changes with an attempt or a release.
_KEYS_STAY: Final = (
    "Its calls keep their keys: a refusal that the called service has stored under one comes again, until it is erased "
    "there, or the handler takes it as the result of the step."
)


def _judge_done(done: KeyView) -> KeyVerdict:
    if done.body_bytes is None:
        return KeyVerdict(
            state=f"Done: answered {done.status}",
            tone="good",
            what="The request was run to its end. Its answer was too large to be kept.",
            gets="410 answer-not-kept. It is not run again.",
            key=done,
        )
    return KeyVerdict(
        state=f"Done: answered {done.status}",
        tone="good" if done.status < 400 else "warn",
        what="The request was run to its end, and its answer is stored."
        + (" What the handler had written was undone, as for every 4xx." if done.status >= 400 else ""),
        gets=f"The stored answer, {done.status}, marked Idempotent-Replayed: true. It is not run again. With another "
        "payload: 422 key-reused.",
        key=done,
    )


def _judge_holder(holder: KeyHolder) -> KeyVerdict:
    since = "" if holder.since_ms is None else f" for {age(max(0, holder.now_ms - holder.since_ms) / 1000)}"
    of = "" if holder.pid is None else f", in the database session with pid {holder.pid}"
    called = f" ({holder.application})" if holder.application else ""
    return KeyVerdict(
        state="Running",
        tone="neutral",
        what=f"A request with this key has been running{since}{of}{called}. It has committed nothing yet.",
        gets="409 key-in-flight, after the route's wait_s, with Retry-After. With another payload: 422 key-reused.",
        way_out="It ends with the handler: its answer is then replayed. "
        + (
            "If its process dies, or it takes longer than the route's lease_s, the database rolls it back, and the "
            "next retry runs."
            if holder.has_lease
            else "If its process dies, it is rolled back, and the next retry runs. SQLite has no lease, and does not "
            "know since when it runs: where the handler hangs, end its process."
        ),
        conflict=True,
    )


def _judge_work(work: WorkView) -> KeyVerdict:
    counts = f"{write_count(work.attempts, 'attempt')}, {write_count(work.steps, 'step')} recorded"
    if work.kind == "message":
        return _judge_message_work(work, counts)
    match work.state:
        case "parked":
            return KeyVerdict(
                state="Waits for a person",
                tone="bad",
                what=f"The request works in recorded steps, and is parked: {work.reason} ({counts})",
                gets="409 work-parked, which is not worth a retry.",
                way_out="Find out what happened, then resume or release the work.",
                conflict=True,
            )
        case "running":
            ends = age(max(0, work.lease_ends_ms - work.now_ms) / 1000)
            return KeyVerdict(
                state="Running, in steps",
                tone="neutral",
                what=f"The request is being done in recorded steps ({counts}). Its lease ends in {ends}, "
                "and is renewed for as long as its process lives.",
                gets="409 key-in-flight, with Retry-After.",
                way_out=f"It ends with the handler. If its process has died, a retry goes on behind the recorded steps "
                f"in {ends}.",
                conflict=True,
            )
        case "left" if work.waits_for_person:
            return KeyVerdict(
                state="Waits for a person",
                tone="bad",
                what="The request was begun in recorded steps, and its process or its client has gone in a call that "
                f"must not be made again: its outcome is unknown ({counts}).",
                gets="409 work-parked, because the outcome of a call is unknown. It is not worth a retry.",
                way_out="Find out whether the call was made, then resume or release the work.",
                conflict=True,
            )
        case "left":
            return KeyVerdict(
                state="Left unfinished",
                tone="warn",
                what=f"The request was begun in recorded steps, and its process or its client has gone ({counts}).",
                gets="It goes on behind the recorded steps.",
                way_out="The next retry goes on with it, or a completer (`onefold complete`), or release it.",
            )


def _judge_message_work(work: WorkView, counts: str) -> KeyVerdict:
    match work.state:
        case "parked":
            return KeyVerdict(
                state="Waits for a person",
                tone="bad",
                what=f"The message is handled in recorded steps, and is parked: {work.reason} ({counts})",
                gets="It is a dead letter: redriven as it is, it is dead again.",
                way_out=f"Find out what happened, then `onefold keys resume {work.id}`, which redrives it; or `onefold "
                f"keys release {work.id}`: `onefold dlq redrive` then begins from the start. {_KEYS_STAY}",
            )
        case "running":
            ends = age(max(0, work.lease_ends_ms - work.now_ms) / 1000)
            return KeyVerdict(
                state="Running, in steps",
                tone="neutral",
                what=f"The message is being handled in recorded steps ({counts}). Its lease ends in {ends}, and is "
                "renewed for as long as its process lives.",
                gets="A delivery meanwhile waits as a failed message, and counts as no attempt.",
                way_out="It ends with the handler. If its process has died, the next attempt goes on behind the "
                f"recorded steps in {ends}.",
            )
        case "left" if work.waits_for_person:
            return KeyVerdict(
                state="Waits for a person",
                tone="bad",
                what="The message is handled in recorded steps, and its last attempt has ended in a call that must not "
                f"be made again: its outcome is unknown ({counts}).",
                gets="Its next attempt makes it a dead letter, because the outcome of a call is unknown.",
                way_out=f"Find out whether the call was made, then `onefold keys resume {work.id}`: a dead letter is "
                "redriven by that, a message that waits goes on when it is due. To begin from the start, release it: "
                f"`onefold keys release {work.id}`. {_KEYS_STAY}",
            )
        case "left":
            gets, first = "Its next attempt begins from the start: nothing is recorded.", ""
            if work.steps:
                gets = "Its next attempt goes on behind the recorded steps."
                first = f"To begin from the start, release it first: `onefold keys release {work.id}`. "
            return KeyVerdict(
                state="Left unfinished",
                tone="warn",
                what="The message is handled in recorded steps, and its last attempt has ended before the handler was "
                f"done ({counts}).",
                gets=gets,
                way_out="A message that waits is tried again by itself; a dead letter is tried again by `onefold dlq "
                f"redrive`. {first}{_KEYS_STAY}",
            )


def _judge_absent(keys: Sequence[KeyView], route: RouteKnown, erased: AuditLine | None) -> KeyVerdict:
    if keys:
        return KeyVerdict(
            state="Expired",
            tone="neutral",
            what=f"The request was answered {keys[0].status}, and its answer was kept for the route's retention_s. The "
            "next reap deletes it.",
            gets="It runs anew; or 410 key-expired, where the route refuses late retries (expiry='refuse').",
            key=keys[0],
        )
    if erased is not None:
        return KeyVerdict(
            state="Erased",
            tone="warn",
            what=f"A stored answer was erased by {erased.actor}. Nothing is stored now, and no request is running.",
            gets="It runs, as a new request.",
        )
    match route:
        case "known":
            what = "Nothing is stored under this principal, route and key, and no request with them is running."
            gets = "It runs, as a new request."
            way_out = "If something should be there: is the principal written as the application calls it?"
        case "unknown":
            what = (
                "The application has no route with keys that fits: a request may be stored under the name of another."
            )
            gets, way_out = (
                "This cannot be predicted: the route is unknown.",
                "Search with a route that it has, or without one.",
            )
        case "unchecked":
            what = "Nothing is stored under this principal, route and key. Whether the application has such a route is "
            what += "unknown: the application was not given (--app)."
            gets = "This cannot be predicted. If the route is right, it runs, as a new request."
            way_out = "Search with the route as the application declares it: POST /orders/{id}, not POST /orders/7."
        case "digest":
            what = (
                "Nothing is stored under this digest. It may be a key_hash (onefold.key.hash) from a log or a trace: "
            )
            what += "that is made of the key alone, and no record is found by it."
            gets = "This cannot be predicted from a digest."
            way_out = "Search with principal, route and Idempotency-Key: its key hash is shown then, too."
    return KeyVerdict(state="Nothing is stored", tone="neutral", what=what, gets=gets, way_out=way_out)
