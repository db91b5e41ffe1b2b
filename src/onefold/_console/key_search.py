"""Finds keys, and their outcome, by what an operator knows of them: for the pages of keys and for `onefold keys`.

A search gives the digests that the request may be stored under; its records are found by them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onefold._console.key_verdicts import KeyVerdict, RouteKnown, judge_key
from onefold._console.known_routes import match_route, retentions_of
from onefold._http.idempotency_key import KeyFault, parse_key
from onefold._http.request_identity import names_of
from onefold._http.route_policy import METHODS, Policy, single_principal
from onefold._idempotency.stored_keys import NAMES_MAX, KeyHolder, KeyView, find_holder, find_keys
from onefold._kernel.audit import AuditLine, find_audit
from onefold._kernel.key_hash import hash_key
from onefold._steps.unfinished_works import StepView, WorkNotFit, WorkView, show_work

_PRINCIPAL_CHARS_MAX: Final = 1000
#: Routes that are tried for a key whose route is not given.
ROUTES_MAX: Final = 200
#: The principal of `single_principal`.
SINGLE: Final = "single"


class NotSearchable(Exception):
    """The input does not name a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySearch:
    """A request, by the names that it may be stored under."""

    names: tuple[bytes, ...]
    route: RouteKnown
    key_hash: str = ""
    """As logs and traces have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundKey:
    """The records under the names of a search."""

    keys: tuple[KeyView, ...]
    holder: KeyHolder | None
    work: WorkView | None
    steps: Sequence[StepView] = ()
    erased: AuditLine | None = None
    """The erasure, if nothing is stored any more."""

    @property
    def is_empty(self) -> bool:
        """Whether there is no trace of it."""
        return not (self.keys or self.holder or self.work or self.erased)

    def judge(self, route: RouteKnown, *, reason: str | None = None) -> KeyVerdict:
        """`reason`: why the work stands still, as this reader may see it."""
        work = self.work if self.work is None or reason is None else replace(self.work, reason=reason)
        return judge_key(self.keys, self.holder, work, route=route, erased=self.erased)


def plan_search(principal: str, route: str, key: str, operations: Mapping[str, Policy]) -> dict[str, KeySearch]:
    """The searches, by operation: one, or one for each of the application where no route is given. `operations`:
    those of the application, if they are known. Raises NotSearchable."""
    if not principal and is_single(operations):
        principal = SINGLE
    method, _, template = route.strip().partition(" ")
    method = method.upper()
    if not route and not operations:
        raise NotSearchable(
            "Give the route (POST /orders; --route on the command line), or the application (--app), which knows its "
            "routes."
        )
    if route and (method not in METHODS or not template.strip()):
        raise NotSearchable("The route is a method and a path, as in POST /orders/{id}.")
    if not principal or len(principal) > _PRINCIPAL_CHARS_MAX:
        raise NotSearchable(
            "Give the principal (--principal): what the application calls the caller, as the id of an account, tenant "
            f"or user; {SINGLE!r}, where it is made with single_principal."
        )
    try:
        parsed_key = parse_key([key.encode("latin-1", "replace")], strict=False)
    except KeyFault as error:
        raise NotSearchable(f"This is not an Idempotency-Key: {error.reason}") from None

    def search(operation: str, route: RouteKnown) -> KeySearch:
        names = names_of(principal, operation, parsed_key, operations)[:NAMES_MAX]
        return KeySearch(names=names, route=route, key_hash=hash_key(parsed_key))

    if not route:
        return {operation: search(operation, "known") for operation in sorted(operations)[:ROUTES_MAX]}
    matched = match_route(method, template.strip(), operations)
    if matched is not None:
        return {matched: search(matched, "known")}
    typed = f"{method} {template.strip()}"
    return {typed: search(typed, "unknown" if operations else "unchecked")}


async def find_stored(dialect: str, searches: Mapping[str, KeySearch]) -> dict[str, KeySearch]:
    """The searches with something stored, running or erased under their names. A single search is returned
    unchecked."""
    if len(searches) == 1:
        return dict(searches)
    return {
        operation: search
        for operation, search in searches.items()
        if not (await look_up(dialect, search.names)).is_empty
    }


async def look_up(dialect: str, names: Sequence[bytes]) -> FoundKey:
    """What is stored under these names: answers, locks, and unfinished works."""
    keys = await find_keys(dialect, names)
    holder = await find_holder(dialect, names)
    work, steps = await _find_work(dialect, names)
    is_empty = not keys and holder is None and work is None
    erased = await _find_erasure(dialect, names) if is_empty else None
    return FoundKey(keys=keys, holder=holder, work=work, steps=steps, erased=erased)


async def _find_work(dialect: str, names: Sequence[bytes]) -> tuple[WorkView | None, Sequence[StepView]]:
    for name in names:
        try:
            return await show_work(dialect, name.hex())
        except WorkNotFit:
            continue
    return None, ()


async def _find_erasure(dialect: str, names: Sequence[bytes]) -> AuditLine | None:
    for name in names:
        line = await find_audit(dialect, action="keys erase", about={"keys": [name.hex()]})
        if line is not None:
            return line
    return None


def stored_ms(keys: Sequence[KeyView], known: Mapping[str, Policy]) -> dict[str, int]:
    """When each was stored, computed from its expiry and the route's retention. An earlier release may have had another
    retention: then it is approximate. Keys of unknown routes are left out."""
    retentions = retentions_of(known)
    timed = [(key, retentions[key.operation]) for key in keys if key.operation in retentions]
    computed = {key.id: key.expires_ms - round(retention_s * 1000) for key, retention_s in timed}
    return {key.id: min(computed[key.id], key.now_ms) for key, _ in timed}


def is_single(known: Mapping[str, Policy]) -> bool:
    """Whether all callers of the application are one principal."""
    return bool(known) and all(policy.principal is single_principal for policy in known.values())
