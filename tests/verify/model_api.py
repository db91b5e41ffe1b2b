"""An idempotent API in memory, right in everything, with one defect planted on demand: the control of each check.

It begins requests and finishes them apart, so that requests at the same time are a schedule and not a race.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onefold._http.idempotency_key import KeyFault, parse_key
from onefold._verify.http_port import HeaderLines, ProbeAnswer, ProbeRequest, Reply

ACCOUNTS = {"Bearer sk-acme-secret": "acme", "Bearer sk-umbrella-secret": "umbrella"}

#: The defects that can be planted, by the check that must find it, and only it.
DEFECTS = {
    "answers once": "replay",
    "re-serialises the body": "byte-identity",
    "forgets Location": "replay-headers",
    "fingerprints all headers": "unrelated-headers",
    "replays cookies": "cookies",
    "compares payloads in flight only": "mismatch",
    "runs and refuses": "mismatch",
    "409 for another payload in flight": "mismatch-in-flight",
    "no lock": "parallel",
    "500 in flight": "parallel",
    "no Retry-After": "retry-after",
    "quotes are part of the key": "key-bare",
    "takes every type": "key-types",
    "takes broken strings": "key-malformed",
    "parameters are part of the key": "key-parameters",
    "picks one of two lines": "key-repeated",
    "empty is none": "key-empty",
    "cuts keys": "key-length",
    "concatenates SQL": "key-hostile",
    "runs without a key": "key-missing",
    "no principal": "other-principal",
    "replays before it authenticates": "no-credentials",
    "no route": "other-route",
    "refusals in HTML": "problem-bodies",
    "one type for all": "problem-bodies",
    "no link": "problem-link",
    "keeps keys for ever": "expiry",
    "forgets keys early": "expiry",
}


@dataclass
class Stored:
    fingerprint: object
    answer: ProbeAnswer
    at_s: float
    replays: int = 0


@dataclass
class Begun:
    """A request whose work is not finished."""

    scope: tuple[object, ...]
    fingerprint: object
    item: Any


@dataclass
class ModelApi:
    """`defects` are planted; `stripe` makes it one in Stripe's manner; `key_optional` runs requests without a key.
    `answers_alike` says of every execution that it is ok, and where it is only with `located`."""

    defects: frozenset[str] = frozenset()
    stripe: bool = False
    key_optional: bool = False
    marks: bool = True
    answers_alike: bool = False
    expiry_s: float = 100.0
    refuses_expired: bool = False
    unique_items: bool = False
    taken_once: bool = False
    """An item is refused to everyone but the first key that has it, as an application's own rule."""
    moved: bool = False
    located: bool = False
    fails_with: int | None = None
    missing_key: int = 400
    now_s: float = 0.0
    rows: list[object] = field(default_factory=list)
    requests: list[ProbeRequest] = field(default_factory=list)
    stored: dict[tuple[object, ...], Stored] = field(default_factory=dict)
    in_flight: dict[tuple[object, ...], list[object]] = field(default_factory=dict)

    def send(self, requests: Sequence[ProbeRequest], /) -> list[Reply]:
        """As a port: all of them begin before one is finished."""
        begun = [self.begin(request) for request in requests]
        return [self.finish(one) if isinstance(one, Begun) else one for one in begun]

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def count(self) -> int:
        return len(self.rows)

    def begin(self, request: ProbeRequest) -> ProbeAnswer | Begun:
        self.requests.append(request)
        headers = {name.lower(): value for name, value in request.headers}
        principal = ACCOUNTS.get(headers.get("authorization", b"").decode("latin-1"))
        lines = [value for name, value in request.headers if name.lower() == "idempotency-key"]
        if principal is None and "replays before it authenticates" not in self.defects:
            return self._refuse(401, "principal-missing")
        try:
            key = self._key(lines)
        except KeyFault:
            return self._refuse(400, "key-malformed")
        if key is not None and "'" in key and "concatenates SQL" in self.defects:
            return ProbeAnswer(status=500)
        item = self._item(request.body)
        if item is None:
            return self._refuse(400, "body-invalid")
        if self.fails_with is not None:
            return ProbeAnswer(status=self.fails_with)
        if self.moved:
            return ProbeAnswer(status=307, headers=(("location", b"/orders/"),))
        if self.unique_items and item in self.rows:
            return self._refuse(409, "item-exists")
        if key is None:
            if (
                self.key_optional
                or {"runs without a key"} & self.defects
                or (lines and "empty is none" in self.defects)
            ):
                return Begun((object(),), None, item)
            return self._refuse(self.missing_key, "key-missing")
        return self._claim(self._scope(request, principal, key), self._fingerprint(request), item, principal)

    def finish(self, begun: Begun) -> ProbeAnswer:
        self.in_flight.pop(begun.scope, None)
        answer = self._execute(begun.item)
        self.stored[begun.scope] = Stored(begun.fingerprint, answer, self.now_s)
        return answer

    def _claim(
        self, scope: tuple[object, ...], fingerprint: object, item: object, principal: str | None
    ) -> ProbeAnswer | Begun:
        kept = self.stored.get(scope)
        if kept is not None and self._has_expired(kept):
            if self.refuses_expired:
                if "runs and refuses" in self.defects:
                    self.rows.append(item)
                return self._refuse(410, "key-expired")
            kept = None
        if kept is None and principal is None:
            found = [one for at, one in self.stored.items() if at[1:] == scope[1:]]
            return self._replay(found[0]) if found else self._refuse(401, "principal-missing")
        if kept is not None:
            if kept.fingerprint == fingerprint or "compares payloads in flight only" in self.defects:
                return self._replay(kept) if not self._is_used_up(kept) else self._begin(scope, fingerprint, item)
            if "runs and refuses" in self.defects:
                self.rows.append(item)
            return self._refuse(400 if self.stripe else 422, "key-reused")
        if (running := self.in_flight.get(scope)) is not None and running:
            if fingerprint not in running:
                other = 409 if "409 for another payload in flight" in self.defects else 422
                return self._refuse(400 if self.stripe else other, "key-reused")
            if "500 in flight" in self.defects:
                return ProbeAnswer(status=500)
            if "no lock" not in self.defects:
                return self._refuse(409, "key-in-flight")
        return self._begin(scope, fingerprint, item)

    def _begin(self, scope: tuple[object, ...], fingerprint: object, item: object) -> ProbeAnswer | Begun:
        if self.taken_once and item in self.rows:
            return self._refuse(409, "item-taken")
        self.in_flight.setdefault(scope, []).append(fingerprint)
        return Begun(scope, fingerprint, item)

    def _is_used_up(self, kept: Stored) -> bool:
        return ("answers once" in self.defects and kept.replays >= 1) or "runs every retry" in self.defects

    def _has_expired(self, kept: Stored) -> bool:
        if "keeps keys for ever" in self.defects:
            return False
        return self.now_s - kept.at_s > self.expiry_s * (0.1 if "forgets keys early" in self.defects else 1)

    def _replay(self, kept: Stored) -> ProbeAnswer:
        kept.replays += 1
        answer = kept.answer
        headers = [(name, value) for name, value in answer.headers if name != "set-cookie"]
        if "replays cookies" in self.defects:
            headers = list(answer.headers)
        if "forgets Location" in self.defects:
            headers = [line for line in headers if line[0] != "location"]
        if self.marks:
            headers.append(("idempotent-replayed", b"true"))
        again = "re-serialises the body" in self.defects
        body = json.dumps(json.loads(answer.body), indent=1).encode() if again else answer.body
        return ProbeAnswer(status=answer.status, headers=tuple(headers), body=body)

    def _execute(self, item: object) -> ProbeAnswer:
        self.rows.append(item)
        number = len(self.rows)
        body = {"ok": True} if self.answers_alike else {"id": number, "item": item}
        place = "/orders/1" if self.answers_alike and not self.located else f"/o/{number}"
        lines = {"content-type": "application/json", "location": place}
        lines["set-cookie"] = f"session=s{number}; Path=/"
        headers = tuple((name, value.encode()) for name, value in lines.items())
        return ProbeAnswer(status=201, headers=headers, body=json.dumps(body).encode())

    def _key(self, lines: list[bytes]) -> str | None:
        if not lines:
            return None
        raw = lines[0].decode("latin-1")
        if "picks one of two lines" in self.defects:
            lines = lines[:1]
        if "empty is none" in self.defects and raw in ("", '""'):
            return None
        if self.stripe:
            if len(raw) > 255:
                raise KeyFault("too long")
            return raw
        if "takes every type" in self.defects and (raw.startswith(("?", ":", "(")) or '", "' in raw):
            return raw
        broken = "takes broken strings" in self.defects and len(lines) == 1
        if broken and raw.startswith('"') and ", " not in raw and len(raw) > 2:
            raw = raw.partition(";")[0]
            if len(raw) <= 257:
                return raw.strip('"')
        if "cuts keys" in self.defects and len(lines) == 1:
            return parse_key(lines, strict=False, length_max=100_000)[:255]
        key = parse_key(lines, strict=False)
        if "quotes are part of the key" in self.defects:
            return raw.partition(";")[0]
        if "parameters are part of the key" in self.defects and ";" in raw:
            return raw
        return key

    def _item(self, body: bytes) -> object:
        try:
            value = json.loads(body)
        except ValueError:
            return None
        return value.get("item") if isinstance(value, dict) else None

    def _scope(self, request: ProbeRequest, principal: str | None, key: str) -> tuple[object, ...]:
        return (
            None if "no principal" in self.defects else principal,
            None if "no route" in self.defects else request.url,
            key,
        )

    def _fingerprint(self, request: ProbeRequest) -> object:
        own = tuple(line for line in request.headers if line[0].lower() not in ("idempotency-key", "authorization"))
        return (request.body, own if "fingerprints all headers" in self.defects else ())

    def _refuse(self, status: int, name: str) -> ProbeAnswer:
        if self.stripe:
            error = {"error": {"type": "idempotency_error", "message": name}}
            headers: HeaderLines = (("content-type", b"application/json"),)
            return ProbeAnswer(status=status, headers=headers, body=json.dumps(error).encode())
        if "refusals in HTML" in self.defects:
            kind, body = "text/html", "<h1>Refused</h1>"
        else:
            slug = "refused" if "one type for all" in self.defects else name
            kind, body = "application/problem+json", json.dumps({"type": f"urn:x:{slug}", "title": name})
        lines = [("content-type", kind), ("link", '</contract>; rel="describedby"')]
        if "no link" in self.defects:
            lines.pop()
        if status == 409 and "no Retry-After" not in self.defects:
            lines.append(("retry-after", "1"))
        headers = tuple((header, value.encode()) for header, value in lines)
        return ProbeAnswer(status=status, headers=headers, body=body.encode())
