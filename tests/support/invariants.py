"""What must hold for keyed requests whatever failed: one checker for crashes, schedules and storms.

It is given what clients saw (every attempt and its answer) and what the database holds afterwards (the business
rows), and nothing else: it knows no store and no driver. It answers with sentences, one per violation.

An attempt without an answer, or with one that says "retry", is ambiguous: its row may be there or not. It is
resolved by the retries that follow it, so a history must go on until every request got a final answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from onefold._http.problems import TYPE_PREFIX
from onefold._http.request import Headers
from onefold._http.stored_response import HEADERS_KEPT, NOT_STORED

#: What an answer says about the request. The last two are not final: the client goes on.
#: done: it happened. declined: the handler refused it, and that was stored. reused: the key names another request.
#: gone: too late to run, or to be repeated. in_flight: wait. again: nothing is known, or nothing happened.
Verdict: TypeAlias = Literal["done", "declined", "reused", "gone", "in_flight", "again"]

FINAL: Final = frozenset({"done", "declined", "reused", "gone"})

_PROBLEMS: Final[dict[str, Verdict]] = {
    "key-in-flight": "in_flight",
    "key-reused": "reused",
    "key-expired": "gone",
    "answer-not-kept": "gone",
    "answer-encoded": "gone",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer as a client received it; header names in lower case."""

    status: int
    headers: Headers = ()
    body: bytes = b""

    @property
    def verdict(self) -> Verdict:
        if (slug := self._problem()) is not None:
            return _PROBLEMS.get(slug, "again")
        if self.status < 400:
            return "done"
        return "again" if self.status >= 500 or self.status in NOT_STORED else "declined"

    @property
    def kept(self) -> tuple[int, Headers, bytes]:
        """The part that every answer to the same request has in common, byte for byte."""
        headers = sorted((name, value) for name, value in self.headers if name.decode("latin-1") in HEADERS_KEPT)
        return self.status, tuple(headers), self.body

    def _problem(self) -> str | None:
        """The slug of one of onefold's own problems."""
        if (b"content-type", b"application/problem+json") not in self.headers:
            return None
        kind = str(json.loads(self.body).get("type", ""))
        return kind.removeprefix(TYPE_PREFIX) if kind.startswith(TYPE_PREFIX) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One request and what came of it. `reply` is None when none came: lost, cut off, killed.

    Times are of one monotonic clock. `payload` is anything that two requests have in common exactly when they ask
    for the same.
    """

    key: str
    payload: str
    reply: Reply | None
    begun_s: float = 0.0
    ended_s: float = 0.0

    @property
    def verdict(self) -> Verdict:
        return "again" if self.reply is None else self.reply.verdict

    def __str__(self) -> str:
        return f"key {self.key!r} with payload {self.payload!r}"


@dataclass(frozen=True, slots=True)
class Effected:
    """One business row: whose key and payload it was written for."""

    key: str
    payload: str

    def __str__(self) -> str:
        return f"key {self.key!r} with payload {self.payload!r}"


def violations(
    attempts: Iterable[Attempt], rows: Iterable[Effected], *, lease_s: float | None = None, margin_s: float = 1.0
) -> list[str]:
    """What is wrong, as sentences. Empty: acknowledged is done once, declined is not done, answers are equal, and
    nobody was kept waiting for longer than `lease_s` + `margin_s` by someone who was not there any more.
    """
    history = _History(list(attempts), Counter(rows))
    found = [sentence for rule in _RULES for sentence in rule(history)]
    if lease_s is not None:
        found += _locked_out(history, lease_s + margin_s)
    return found


class _History:
    """What was seen, by request (key and payload) and by key: every rule takes one pass."""

    def __init__(self, attempts: list[Attempt], rows: Counter[Effected]) -> None:
        self.rows = rows
        self.requests: dict[Effected, list[Attempt]] = {}
        self.keys: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            self.requests.setdefault(Effected(attempt.key, attempt.payload), []).append(attempt)
            self.keys.setdefault(attempt.key, []).append(attempt)

    def first(self, *verdicts: Verdict) -> Iterator[tuple[Effected, Attempt]]:
        """Of each request the first attempt that ended so."""
        for request, attempts in self.requests.items():
            for attempt in attempts:
                if attempt.verdict in verdicts:
                    yield request, attempt
                    break


Rule: TypeAlias = Callable[[_History], Iterator[str]]


def _acknowledged_is_done_once(history: _History) -> Iterator[str]:
    for request, _ in history.first("done"):
        if history.rows[request] != 1:
            yield f"{request} was acknowledged and has {history.rows[request]} rows, not 1"


def _nothing_is_done_twice(history: _History) -> Iterator[str]:
    of_key: Counter[str] = Counter()
    for row, count in history.rows.items():
        of_key[row.key] += count
    for key, count in of_key.items():
        if count > 1:
            yield f"key {key!r} has {count} rows, at most 1 may ever be there"


def _declined_is_not_done(history: _History) -> Iterator[str]:
    for request, attempt in history.first("declined"):
        if history.rows[request]:
            yield f"{request} was declined with {_status(attempt)} and has a row"


def _every_row_was_asked_for(history: _History) -> Iterator[str]:
    for row in history.rows:
        if row not in history.requests:
            yield f"a row exists for {row}, which nobody asked for"


def _answers_are_equal(history: _History) -> Iterator[str]:
    for request, first in history.first("done", "declined"):
        for other in history.requests[request]:
            if other.verdict in ("done", "declined") and _kept(other) != _kept(first):
                yield f"{request} was answered {_kept(first)!r}, and then {_kept(other)!r}"


def _one_payload_owns_a_key(history: _History) -> Iterator[str]:
    owners: dict[str, str] = {}
    for request, _ in history.first("done", "declined"):
        owner = owners.setdefault(request.key, request.payload)
        if owner != request.payload:
            yield f"key {request.key!r} was answered for two payloads: {owner!r} and {request.payload!r}"
    for request, _ in history.first("reused"):
        if all(attempt.payload == request.payload for attempt in history.keys[request.key]):
            yield f"{request} was told that its key names another request, and there is none"


def _every_request_ends(history: _History) -> Iterator[str]:
    for request, attempts in history.requests.items():
        if attempts[-1].verdict not in FINAL:
            yield f"{request} never got a final answer; its last one was {_status(attempts[-1])}"


_RULES: Final[tuple[Rule, ...]] = (
    _acknowledged_is_done_once,
    _nothing_is_done_twice,
    _declined_is_not_done,
    _every_row_was_asked_for,
    _answers_are_equal,
    _one_payload_owns_a_key,
    _every_request_ends,
)


def _locked_out(history: _History, patience_s: float) -> Iterator[str]:
    """Being told "in flight" is right while someone holds the key, and for a lease after its holder was lost."""
    for attempts in history.keys.values():
        for refused in attempts:
            if refused.verdict == "in_flight" and not any(
                other is not refused
                and other.begun_s <= refused.ended_s
                and max(other.ended_s, other.begun_s + patience_s) >= refused.begun_s
                for other in attempts
                if other.verdict != "in_flight"  # who only waits holds nothing
            ):
                yield f"{refused} was told to wait, and nobody had worked on it for {patience_s:g} s"


def _kept(attempt: Attempt) -> tuple[int, Headers, bytes] | None:
    return None if attempt.reply is None else attempt.reply.kept


def _status(attempt: Attempt) -> str:
    return "none" if attempt.reply is None else str(attempt.reply.status)


@dataclass(frozen=True, slots=True)
class Held:
    """Something that happened to the right to run a key: `holder` was granted it, or settled by it."""

    happened: Literal["granted", "settled"]
    key: str
    holder: str


def fence_violations(log: Iterable[Held]) -> list[str]:
    """Whoever lost the right to run a key to someone else must not settle any more, not even harmlessly."""
    found: list[str] = []
    holder: dict[str, str] = {}
    for entry in log:
        if entry.happened == "granted":
            holder[entry.key] = entry.holder
        elif holder.get(entry.key) != entry.holder:
            found.append(f"{entry.holder} settled key {entry.key!r} after {holder.get(entry.key)} had taken it over")
    return found
