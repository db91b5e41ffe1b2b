"""The table of checks: each promise, its origin, why it matters, and what to do if it is broken.

docs/verify.md lists them; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from onefold._verify.checks import expiry, key_header, mismatch, parallel, redelivery, refusal_bodies, replay, scope
from onefold._verify.probing import Probe
from onefold._verify.profiles import Profile
from onefold.errors import ConfigurationError

AskedBy = Literal["draft MUST", "draft SHOULD", "security", "onefold"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeCheck:
    """A check. It sends at most `requests`, and `together` times the number of duplicates."""

    name: str
    asked: AskedBy
    """By the draft, by security, or by onefold's contract where the draft is silent."""
    promise: str
    why: str
    advice: str
    run: Callable[[Probe], str]
    requests: int
    together: int = 0
    canary: bool = False
    of_replays: bool = False
    """It compares with a replay: where retries run again, it is not applicable."""


CHECKS: Final[tuple[ProbeCheck, ...]] = (
    ProbeCheck(
        name="replay",
        asked="draft SHOULD",
        promise="a retry gets the status and the content of the first answer, and nothing happens again",
        why="a client whose connection broke repeats its request: the customer pays twice, or gets an error",
        advice="store the answer under the key in the transaction of the write, and answer retries from the store",
        run=replay.check_replay,
        requests=4,
        canary=True,
    ),
    ProbeCheck(
        name="byte-identity",
        asked="onefold",
        promise="the body of a replay is the first body, byte for byte",
        why="signatures and ETags over the body break, and an answer that is made anew shows state of another moment",
        advice="store the bytes of the answer, not the objects that it was made of",
        run=replay.check_byte_identity,
        requests=2,
        of_replays=True,
        canary=True,
    ),
    ProbeCheck(
        name="replay-headers",
        asked="onefold",
        promise="Content-Type, Location, ETag and the like of the first answer are replayed",
        why="a client that follows Location after a retry does not find what it has created",
        advice="store an allow-list of headers with the answer",
        run=replay.check_replay_headers,
        requests=2,
        of_replays=True,
    ),
    ProbeCheck(
        name="replay-mark",
        asked="onefold",
        promise="a replay has Idempotent-Replayed: true, and a first answer has not",
        why="clients and logs cannot tell a retry that was absorbed from work that was done",
        advice="add the header where an answer comes from the store",
        run=replay.check_replay_mark,
        requests=2,
        of_replays=True,
    ),
    ProbeCheck(
        name="unrelated-headers",
        asked="onefold",
        promise="a retry with another span, agent or date is the same request",
        why="each attempt has tracing headers of its own, so no retry of an instrumented client is recognised",
        advice="leave headers out of the fingerprint, but for those that change the request's meaning",
        run=replay.check_unrelated_headers,
        requests=2,
        of_replays=True,
    ),
    ProbeCheck(
        name="cookies",
        asked="security",
        promise="cookies, challenges and tokens in headers reach the first client only",
        why="a stored session cookie is given to all who repeat the key, long after it was revoked",
        advice="leave Set-Cookie, WWW-Authenticate and tokens out of what is stored",
        run=replay.check_cookies,
        requests=2,
        of_replays=True,
    ),
    ProbeCheck(
        name="mismatch",
        asked="draft MUST",
        promise="the key with another payload is refused (422), nothing runs, and the first answer stays",
        why="a client that reuses a key by mistake gets the success of another order, and its new one is not placed",
        advice="store a fingerprint of the payload with the key, and compare it before anything is replayed",
        run=mismatch.check_mismatch,
        requests=3,
        canary=True,
    ),
    ProbeCheck(
        name="mismatch-in-flight",
        asked="draft SHOULD",
        promise="of two payloads at once with one key one runs, and the other is refused (422), not made to wait",
        why="a 409 says 'come again': the client retries until the first is done, for a request that can never run",
        advice="keep the fingerprint where the request in flight is locked, and compare it there, too",
        run=mismatch.check_mismatch_in_flight,
        requests=2 * mismatch.ROUNDS,
    ),
    ProbeCheck(
        name="parallel",
        asked="draft SHOULD",
        promise="of many duplicates at once one runs; the others get 409, or its answer",
        why="a double click, or a proxy that retries early, runs the request twice: look-up and insert are apart",
        advice="claim the key atomically (a unique index, a lock) before the work begins",
        run=parallel.check_parallel,
        requests=parallel.ROUNDS,
        together=parallel.ROUNDS,
        canary=True,
    ),
    ProbeCheck(
        name="retry-after",
        asked="onefold",
        promise="a refusal in flight says when to come again (Retry-After)",
        why="clients that do not know how long to wait come at once, all of them",
        advice="send Retry-After with the 409",
        run=parallel.check_retry_after,
        requests=0,
        together=1,
    ),
    ProbeCheck(
        name="key-bare",
        asked="onefold",
        promise="a key without quotes is refused (400), or is the same key as in quotes",
        why="a library or gateway that adds or drops the quotes between two attempts makes two intents of one",
        advice="parse the header as a Structured Field String; take the bare text for its content, or refuse it",
        run=key_header.check_key_bare,
        requests=2,
        of_replays=True,
    ),
    ProbeCheck(
        name="key-types",
        asked="draft MUST",
        promise="other structured types than a string (boolean, bytes, lists) are 400",
        why="such values have several spellings: what a gateway rewrites on the way is another key",
        advice="parse the header as a Structured Field String (RFC 9651)",
        run=key_header.check_key_types,
        requests=4,
    ),
    ProbeCheck(
        name="key-malformed",
        asked="draft MUST",
        promise="missing quotes, bad escapes, control characters and non-ASCII are 400",
        why="two readers of a broken header read two different keys",
        advice="parse the header as a Structured Field String (RFC 9651), and repair nothing",
        run=key_header.check_key_malformed,
        requests=5,
    ),
    ProbeCheck(
        name="key-parameters",
        asked="draft MUST",
        promise="parameters after the key are ignored",
        why="an intermediary may add them to one attempt: the retry is then a new request",
        advice="take the string only as the key; skip its parameters",
        run=key_header.check_key_parameters,
        requests=2,
        of_replays=True,
    ),
    ProbeCheck(
        name="key-repeated",
        asked="draft MUST",
        promise="two lines of the header are 400, never one of them",
        why="a proxy and the application may pick different ones: one intent has two names",
        advice="count the header lines before one is read",
        run=key_header.check_key_repeated,
        requests=2,
    ),
    ProbeCheck(
        name="key-empty",
        asked="security",
        promise="an empty key is 400",
        why="as a key it is shared by all clients with that bug; as none, the request runs unprotected",
        advice="refuse keys without a character",
        run=key_header.check_key_empty,
        requests=2,
    ),
    ProbeCheck(
        name="key-length",
        asked="security",
        promise="a long key is refused, or read whole",
        why="keys that are cut to a column's width collide: one client gets the answer of another request",
        advice="refuse keys longer than you store, before the store is read",
        run=key_header.check_key_length,
        requests=4,
        of_replays=True,
    ),
    ProbeCheck(
        name="key-hostile",
        asked="security",
        promise="keys with metacharacters of SQL, Redis, paths and templates are data, or are refused",
        why="the key comes from strangers and goes into the store first of all",
        advice="bind it as a parameter, or store its hash",
        run=key_header.check_key_hostile,
        requests=8,
    ),
    ProbeCheck(
        name="key-missing",
        asked="draft SHOULD",
        promise="a request without a key is 400 where the route requires one",
        why="a client that forgot its key learns so when its first retry has run twice",
        advice="require the header, or say --key-optional where you do not",
        run=key_header.check_key_missing,
        requests=1,
    ),
    ProbeCheck(
        name="other-principal",
        asked="security",
        promise="the same key of two principals is two keys: two executions, two answers",
        why="a customer who sends a key that another one used gets that one's answer, or is locked out",
        advice="make the authenticated account part of the key's scope",
        run=scope.check_other_principal,
        requests=5,
        of_replays=True,
    ),
    ProbeCheck(
        name="no-credentials",
        asked="security",
        promise="a retry without credentials is refused as the first request would be",
        why="the store answers before the application has looked at who is asking: keys become passwords",
        advice="authenticate before a replay is looked up",
        run=scope.check_no_credentials,
        requests=3,
    ),
    ProbeCheck(
        name="other-route",
        asked="onefold",
        promise="the same key on another route is another operation",
        why="a client that derives keys from its order's id pays, and the refund is answered with the payment",
        advice="make method and route part of the key's scope",
        run=scope.check_other_route,
        requests=5,
        of_replays=True,
    ),
    ProbeCheck(
        name="problem-bodies",
        asked="onefold",
        promise="refusals are application/problem+json with a type and a title, one type for each reason",
        why="a client that cannot tell a mismatch from a validation error retries what it must not, or gives up",
        advice="answer refusals as RFC 9457 says, with a stable type",
        run=refusal_bodies.check_problem_bodies,
        requests=3,
    ),
    ProbeCheck(
        name="problem-link",
        asked="draft SHOULD",
        promise='refusals have a type that is an address, or Link: rel="describedby"',
        why="the one who meets the refusal does not know your contract",
        advice="publish the contract, and link to it from refusals",
        run=refusal_bodies.check_problem_link,
        requests=3,
    ),
    ProbeCheck(
        name="expiry",
        asked="onefold",
        promise="a key is known for as long as is said, and then runs anew or is refused (410)",
        why="a retry after a key was forgotten too early runs twice; one that is kept for ever is never deleted",
        advice="check the expiry when a key is looked up, not only when old rows are deleted",
        run=expiry.check_expiry,
        requests=4,
        of_replays=True,
    ),
    ProbeCheck(
        name="redelivery",
        asked="onefold",
        promise="a message that is delivered several times is handled once",
        why="brokers deliver at least once: each crash between the work and its acknowledgement does it twice",
        advice="store the message's id in the transaction of the work, and acknowledge after its commit",
        run=redelivery.check_redelivery,
        requests=0,
        canary=True,
    ),
)

_BY_NAME: Final = {check.name: check for check in CHECKS}


def choose(
    profile: Profile, *, only: Collection[str] = (), skip: Collection[str] = (), canary: bool = False, http: bool = True
) -> tuple[Sequence[ProbeCheck], Sequence[tuple[ProbeCheck, str]]]:
    """The checks to run, and those that are skipped, each with the reason. Raises ConfigurationError."""
    for name in (*only, *skip):
        if name not in _BY_NAME:
            raise ConfigurationError(f"there is no check {name!r}; there are: {', '.join(_BY_NAME)}")
    chosen, left_out = [], []
    for check in CHECKS:
        if (only and check.name not in only) or (canary and not only and not check.canary):
            continue
        if not http and (check.requests or check.together):
            continue
        if check.name in skip:
            left_out.append((check, "--skip"))
        elif (reason := profile.left_out.get(check.name)) is not None:
            left_out.append((check, reason))
        else:
            chosen.append(check)
    return chosen, left_out
