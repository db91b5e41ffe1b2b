"""What a check works with: it makes requests, sends them within a bound, counts effects, and keeps what was seen."""

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
    """The operation that is tested, and what was given to test it with."""

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
    """What the edge does for the checks."""

    port: HttpPort
    new_key: Callable[[], str]
    wait: Callable[[float], None]
    count: Callable[[], int] | None = None
    publish: Callable[[str], None] | None = None
    hide: Callable[[str], str] = str
    """Takes credentials out of what is shown."""


class Probe:
    """One run. `allow` opens the account of a check: so many requests, and no more."""

    def __init__(self, target: Target, payloads: Payloads, around: Surroundings) -> None:
        self.target, self.payloads, self.around = target, payloads, around
        self.profile = target.profile
        self.requests = 0
        self.tells_apart = False
        """Whether two executions of the same payload have different answers, so that a replay can be told from one."""
        self.locations_tell = False
        """Whether two executions have different Locations, which tells them apart where their content does not."""
        self.runs_again = False
        """Whether retries were seen to run: what a replay looks like cannot be known then."""
        self.other_payload_refused: str | None = None
        self._left = 0
        self._seen: list[Exchange] = []

    def allow(self, requests: int) -> None:
        self._left, self._seen = requests, []

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What the check has sent and got; what is the same stands there once."""
        return tuple(replace(one, times=times) for one, times in Counter(self._seen).items())

    def begin_round(self) -> None:
        """The rounds before were well, and show nothing."""
        self._seen = []

    # Requests

    def request(self, body: bytes, *keys: bytes, url: str | None = None, headers: HeaderLines = ()) -> ProbeRequest:
        """A request with these lines of the key's header, and with these headers in the place of the usual ones."""
        replaced = {name.lower() for name, _ in headers}
        kept = tuple((name, value) for name, value in self.target.headers if name.lower() not in replaced)
        content: HeaderLines = (("Content-Type", b"application/json"),) if body else ()
        named = {name.lower() for name, _ in (*kept, *headers)}
        content = tuple(line for line in content if line[0].lower() not in named)
        return ProbeRequest(
            method=self.target.method,
            url=url or self.target.url,
            headers=(*content, *kept, *headers, *((KEY_HEADER, key) for key in keys)),
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
        """One request; that there is no answer is a violation."""
        return self.send_together([request], note)[0]

    def send_together(self, requests: Sequence[ProbeRequest], note: str) -> list[ProbeAnswer]:
        """All at the same time."""
        self._left -= len(requests)
        if self._left < 0:
            raise RuntimeError("a check sends more than the table allows it: raise its bound in the catalogue")
        self.requests += len(requests)
        replies = self.around.port.send(requests)
        for request, reply in zip(requests, replies, strict=True):
            self._seen.append(exchange(request, reply, KEY_HEADER, note, self.around.hide))
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
        """Whether the answer is the first one once more, and not that of another execution; None: cannot be told."""
        if is_marked(answer):
            return True
        if not same_answer(first, answer):
            return False
        if self.tells_apart:
            return True
        place = answer.header("location")
        if self.locations_tell and place is not None:
            return place == first.header("location")
        return None

    def require_replay(self, first: ProbeAnswer, answer: ProbeAnswer, what: str) -> None:
        """Inside a block of `effects`: where answers cannot tell, its count does."""
        replay = self.is_replay(first, answer)
        if replay is False:
            raise Violation(f"{what} was answered {answer.status} and not with the first answer ({first.status})")
        if replay is None:
            self.require_count()

    def require_count(self) -> None:
        """Answers say nothing about what happened."""
        if self.around.count is None:
            raise Untold("two executions have the same answer, so a replay looks like one: give --count")

    @contextmanager
    def effects(self, expected: int, of: str) -> Iterator[None]:
        """The count must rise by so many over the block, where there is one."""
        if self.around.count is None:
            yield
            return
        # What was sent before may take effect as late.
        self.around.wait(self.target.count_delay_s)
        before = self.around.count()
        yield
        self.around.wait(self.target.count_delay_s)
        after = self.around.count()
        self._seen.append(Exchange(sent="the count command, before and after", came=f"{before}, {after}"))
        if after - before != expected:
            violation = RanAgain if after - before > expected else Violation
            raise violation(f"the count rose by {after - before}, and must rise by {expected}: {of}")
