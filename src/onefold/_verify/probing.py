"""The probe of a check: makes requests, sends them within a bound, counts effects, and records the exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from onefold._verify.answers import exchange, is_marked, same_answer
from onefold._verify.findings import Exchange, NotApplicable, RanAgain, Untold, UnusableTarget, Violation
from onefold._verify.http_port import HeaderLines, HttpPort, NoAnswer, ProbeAnswer, ProbeRequest
from onefold._verify.payloads import Payloads
from onefold._verify.profiles import Profile

KEY_HEADER: Final = "Idempotency-Key"

#: About rights or pace: such an answer says nothing about a key.
ABOUT_RIGHTS: Final = frozenset({401, 403, 407})
ABOUT_PACE: Final = frozenset({429, 503})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The tested operation, and the options of the test."""

    url: str
    method: str
    profile: Profile
    headers: HeaderLines = ()
    other_headers: HeaderLines = ()
    """Of another principal, in the place of those with the same name."""
    other_url: str | None = None
    duplicates: int = 8
    key_optional: bool = False
    expiry_s: float | None = None
    count_delay_s: float = 0.0
    """How long after its answer a request may take effect: it is counted then."""
    deliveries: int = 3
    settle_s: float = 60.0
    """How long a message may take until it is handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The I/O that the edge does for the checks."""

    port: HttpPort
    new_key: Callable[[], str]
    wait: Callable[[float], None]
    count: Callable[[], int] | None = None
    publish: Callable[[str], None] | None = None
    hide: Callable[[str], str] = str
    """Removes credentials from a text."""


class Probe:
    """One run. `allow` opens the account of a check: so many requests, and no more."""

    def __init__(self, target: Target, payloads: Payloads, around: Surroundings) -> None:
        self.target, self.payloads, self.around = target, payloads, around
        self.profile = target.profile
        self.requests = 0
        self.answers_differ = False
        """Whether two executions of the same payload have different answers, so that a replay differs from an
        execution."""
        self.locations_differ = False
        """Whether two executions have different Locations, which distinguish them where their content does not."""
        self.runs_again = False
        """Whether a retry was seen to run: then there is no replay to compare with."""
        self.other_payload_refused: str | None = None
        self._remaining = 0
        self._exchanges: list[Exchange] = []

    def allow(self, requests: int) -> None:
        self._remaining, self._exchanges = requests, []

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of the check; repeated ones are listed once, with their number."""
        return tuple(replace(one, times=times) for one, times in Counter(self._exchanges).items())

    def begin_round(self) -> None:
        """Drop the exchanges of earlier rounds, which passed."""
        self._exchanges = []

    # Requests

    def request(self, body: bytes, *keys: bytes, url: str | None = None, headers: HeaderLines = ()) -> ProbeRequest:
        """A request with these lines of the key's header, and with these headers in the place of the usual ones."""
        replaced = {name.lower() for name, _ in headers}
        unchanged = tuple((name, value) for name, value in self.target.headers if name.lower() not in replaced)
        content: HeaderLines = (("Content-Type", b"application/json"),) if body else ()
        named = {name.lower() for name, _ in (*unchanged, *headers)}
        content = tuple(line for line in content if line[0].lower() not in named)
        return ProbeRequest(
            method=self.target.method,
            url=url or self.target.url,
            headers=(*content, *unchanged, *headers, *((KEY_HEADER, key) for key in keys)),
            body=body,
        )

    def new_request(self, *, url: str | None = None, headers: HeaderLines = ()) -> ProbeRequest:
        """A request with a new key and a new payload."""
        key = self.profile.spell(self.around.new_key())
        return self.request(self.payloads.fresh(), key, url=url, headers=headers)

    def with_other_payload(self, request: ProbeRequest) -> ProbeRequest:
        """The same key, another payload."""
        if self.other_payload_refused is not None:
            raise NotApplicable(f"the other payload is refused by itself: {self.other_payload_refused}")
        body = self.payloads.other(request.body)
        if body is None:
            raise NotApplicable("the payload cannot be varied: give --other-body, or {{n}} or {{unique}} in --body")
        return replace(request, body=body)

    # Sending

    def send(self, request: ProbeRequest, note: str) -> ProbeAnswer:
        """Send one request; a missing answer is a violation."""
        return self.send_together([request], note)[0]

    def send_together(self, requests: Sequence[ProbeRequest], note: str) -> list[ProbeAnswer]:
        """Send all at the same time."""
        self._remaining -= len(requests)
        if self._remaining < 0:
            raise RuntimeError("a check sends more than the table allows it: raise its bound in the catalogue")
        self.requests += len(requests)
        replies = self.around.port.send(requests)
        for request, reply in zip(requests, replies, strict=True):
            self._exchanges.append(exchange(request, reply, KEY_HEADER, note, self.around.hide))
        answers = [reply for reply in replies if isinstance(reply, ProbeAnswer)]
        for reply in replies:
            if isinstance(reply, NoAnswer):
                if not reply.connected:
                    raise UnusableTarget(reply.reason)
                raise Violation(f"{note}: no answer: {reply.reason}")
        return answers

    def send_first(self, request: ProbeRequest) -> ProbeAnswer:
        """A request that has to succeed before the check can say anything."""
        answer = self.send(request, "first")
        if not answer.succeeded:
            raise Violation(f"the first request with a new key was answered {answer.status}: the check cannot be done")
        return answer

    # Judging

    def is_replay(self, first: ProbeAnswer, answer: ProbeAnswer) -> bool | None:
        """Whether the answer is a replay of the first, and not of another execution; None: the answers do not show
        it."""
        if is_marked(answer):
            return True
        if not same_answer(first, answer):
            return False
        if self.answers_differ:
            return True
        place = answer.header("location")
        if self.locations_differ and place is not None:
            return place == first.header("location")
        return None

    def require_replay(self, first: ProbeAnswer, answer: ProbeAnswer, what: str) -> None:
        """Require a replay. Inside a block of `effects`, whose count decides where the answers do not."""
        replay = self.is_replay(first, answer)
        if replay is False:
            raise Violation(f"{what} was answered {answer.status} and not with the first answer ({first.status})")
        if replay is None:
            self.require_count()

    def require_count(self) -> None:
        """Raise Untold without a count: the answers do not show the effects."""
        if self.around.count is None:
            raise Untold("two executions have the same answer, so a replay looks like one: give --count")

    @contextmanager
    def effects(self, expected: int, of: str) -> Iterator[None]:
        """If there is a count, it must rise by `expected` over the block."""
        if self.around.count is None:
            yield
            return
        # Earlier requests may take effect as late.
        self.around.wait(self.target.count_delay_s)
        before = self.around.count()
        yield
        self.around.wait(self.target.count_delay_s)
        after = self.around.count()
        self._exchanges.append(Exchange(sent="the count command, before and after", came=f"{before}, {after}"))
        if after - before != expected:
            violation = RanAgain if after - before > expected else Violation
            raise violation(f"the count rose by {after - before}, and must rise by {expected}: {of}")
