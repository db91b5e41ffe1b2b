"""The rows of the HTTP contract: what each promises, in one line, and where a backend has no such case.

The completeness test reads this list, and docs/http-contract.md is generated from it (see `page.py`). A row without a
test in one of the four backends is an error, unless a reason for that backend stands here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, get_args

BackendName: TypeAlias = Literal["asgi-sqlite", "asgi-postgres", "wsgi-sqlite", "wsgi-postgres"]

ALL: Final[tuple[BackendName, ...]] = get_args(BackendName)
ASGI: Final[tuple[BackendName, ...]] = ("asgi-sqlite", "asgi-postgres")
WSGI: Final[tuple[BackendName, ...]] = ("wsgi-sqlite", "wsgi-postgres")
SQLITE: Final[tuple[BackendName, ...]] = ("asgi-sqlite", "wsgi-sqlite")
POSTGRES: Final[tuple[BackendName, ...]] = ("asgi-postgres", "wsgi-postgres")

#: What draft-ietf-httpapi-idempotency-key-header-07 says of a case, in its words, or in its security considerations.
#: Where it is silent the promise is onefold's own.
Level: TypeAlias = Literal["must", "should", "recommended", "security", "silent"]


@dataclass(frozen=True, slots=True)
class Row:
    """One promise. `absent` says for which backends it makes no sense, and why."""

    meaning: str
    absent: Mapping[BackendName, str] = field(default_factory=dict)
    level: Level = "silent"


def _absent(backends: tuple[BackendName, ...], reason: str) -> Mapping[BackendName, str]:
    return dict.fromkeys(backends, reason)


ROWS: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "C01": Row("a quoted string is a key: its content, without the quotes", level="must"),
        "C02": Row("a strict route refuses every other structured type with 400", level="must"),
        "C03": Row("bad escapes, control characters, non-ASCII and missing quotes are 400", level="must"),
        "C04": Row("parameters after the key are ignored", level="must"),
        "C05": Row("two header lines are 400, never one of them", level="must"),
        "C06": Row("a lenient route reads a bare key as the same key in quotes"),
        "C07": Row("the key with another payload is 422; nothing runs and the first answer stays", level="must"),
        "C08": Row(
            "empty, endless and hostile keys are refused or are data, before the store is asked", level="security"
        ),
        "C09": Row(
            "onefold's own keys are UUIDv7: ordered by time, accepted by the strictest route", level="recommended"
        ),
        "C10": Row("the promises are published: a page with the expiration policy", level="must"),
        "C11": Row("a route chooses how payloads are compared: JSON, bytes, fields, or a function", level="should"),
        "C12": Row("spelling of JSON does not matter, and every digit of a number does"),
        "C13": Row("tracing headers, dates, agents and rotated tokens do not make another request"),
        "C14": Row(
            "a retry gets status, kept headers and body of the first answer, marked as a replay", level="should"
        ),
        "C15": Row("a deterministic 4xx is stored and replayed, and leaves no business rows", level="should"),
        "C15b": Row("answers about rights or pace, and those given before the handler ran, are not stored"),
        "C16": Row("204, 303, empty, text, binary and gzip answers replay exactly"),
        "C17": Row("5xx and exceptions leave nothing, and a retry runs again"),
        "C18": Row(
            "of many concurrent duplicates one runs; the others get 409 with Retry-After, or wait", level="should"
        ),
        "C19": Row("another payload while the first is in flight is 422, not 409", level="should"),
        "C20": Row(
            "a missing key on a route that requires one is a 400 problem that says where to read on", level="should"
        ),
        "C21": Row("keys mean nothing to other routes and to GET"),
        "C22": Row("principals never share a key: two executions, two answers", level="security"),
        "C23": Row("the same key on another route or method is another operation"),
        "C24": Row("after expiry a key runs anew, or, where the route says so, is 410 and never runs"),
        "C25": Row("cookies, challenges and tokens reach the first client only"),
        "C26": Row("streams and large answers go out whole; what was too large to keep is 410 later"),
        "C27": Row("large, slow and broken request bodies are refused before anything is claimed"),
        "C28": Row("a client that hangs up does not stop the work; its retry replays"),
        "C29": Row("a killed process leaves a stored answer or a clean retry, never two executions"),
        "C30": Row("a store that is down is 503, or runs unprotected where the route says so; it comes back"),
        "C31": Row("problems are application/problem+json with stable members"),
        "C32": Row("the status of a key: unknown, in flight or done, for its own principal only"),
        "C33": Row("records of older schema versions replay; newer ones are refused by name"),
        "C34": Row(
            "a connection lost during COMMIT is looked up: the stored answer, or a 503 that says what to do",
            _absent(SQLITE, "COMMIT is a call inside the process: there is no connection whose answer could be lost"),
        ),
        "C35": Row("a handler that swallows an SQL error or commits by itself is a 500 that says so"),
        "C36": Row("replays are served while new work is shed"),
        "C37": Row("a handler that raised keeps no rows and no events, whatever an exception handler answers"),
        "C38": Row("when another answer goes out in place of the handler's, nothing of the handler's follows"),
        "C44": Row(
            "the isolation that the application chose is kept; what cannot be serialised is 503 and never stored",
            _absent(SQLITE, "one transaction writes at a time: there is nothing that could not be serialised"),
        ),
        "C42": Row(
            "a stored answer is sent in a coding that its caller accepts, or refused; never as unreadable bytes"
        ),
        "C39": Row("a caller who may not see an answer is refused before any replay and before the status resource"),
        "C43": Row("a part that is interrupted leaves nothing; the rest is as without it, or the request fails loudly"),
        "C40": Row("the same form with another boundary is a replay"),
        "C41": Row("a renamed parameter, a moved route with an operation, another strategy: a retry is a replay"),
    }
)
