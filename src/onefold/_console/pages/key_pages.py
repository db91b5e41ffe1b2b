"""Keys: found by principal, route and key; what became of one, why it is held, its stored answer, erasing it.

A key is addressed by the digests that it may be stored under, so that neither it nor its principal stands in an
address, a log or a history.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from onefold._console.key_verdicts import RouteKnown, judge_key
from onefold._console.known_routes import match_route, retentions_of
from onefold._console.roles import Role
from onefold._console.sections import ASK_WHY, Page, Section, Visit, missing
from onefold._console.stored_answers import read_answer
from onefold._http.idempotency_key import MalformedKey, parse_key
from onefold._http.request_identity import names_of
from onefold._http.route_policy import METHODS, Policy, single_principal
from onefold._http.stored_response import read_span
from onefold._idempotency.encryption import UnreadableAnswer
from onefold._idempotency.stored_keys import (
    NAMES_MAX,
    KeyView,
    erase,
    find_head,
    find_holder,
    find_keys,
    list_keys,
    read_digest,
    show_answer,
)
from onefold._kernel.audit import AuditLine, find_audit
from onefold._kernel.key_hash import hash_key
from onefold._steps.unfinished_works import WorkNotFit, WorkView, show_work

_PRINCIPAL_CHARS_MAX: Final = 1000
#: That are tried for a key whose route is not given.
ROUTES_MAX: Final = 200
#: The principal of `single_principal`.
SINGLE: Final = "single"


async def show_list(visit: Visit) -> Response:
    return await _render_list(visit)


async def find(visit: Visit) -> Response:
    """From what the operator knows to the address of the key. By POST: the key stays out of addresses and logs."""
    principal, route, key = (visit.form.get(name, "").strip() for name in ("principal", "route", "key"))
    problem, read = "", ""
    operations = _operations(visit)
    if not principal and _is_single(visit):
        principal = SINGLE
    method, _, template = route.partition(" ")
    if not route and not operations:
        problem = "Give the route: without the application (--app) this console does not know its routes."
    elif route and (method not in METHODS or not template.strip()):
        problem = "The route is a method and a path, as in POST /orders/{id}."
    elif not principal or len(principal) > _PRINCIPAL_CHARS_MAX:
        problem = "The principal is what the application calls the caller: the id of an account, tenant or user."
    else:
        try:
            read = parse_key([key.encode("latin-1", "replace")], strict=False)
        except MalformedKey as error:
            problem = f"This is not an Idempotency-Key: {error.reason}"
    if problem:
        return await _render_list(visit, problem=problem, typed=visit.form)
    if not route:
        return await _find_everywhere(visit, principal, read, operations)
    meant = match_route(method, template.strip(), operations)
    known: RouteKnown = "known" if meant is not None else "unknown" if operations else "unchecked"
    names = names_of(principal, meant or f"{method} {template.strip()}", read, operations)
    address = ".".join(name.hex() for name in names[:NAMES_MAX])
    return visit.redirect(f"/keys/{address}", route=known, hash=hash_key(read))


async def _find_everywhere(visit: Visit, principal: str, key: str, operations: Mapping[str, Policy]) -> Response:
    """A key whose route is not known: each route of the application is tried."""
    candidates: dict[str, str] = {}
    for operation in sorted(operations)[:ROUTES_MAX]:
        names = names_of(principal, operation, key, operations)[:NAMES_MAX]
        stored = await visit.ask(functools.partial(find_keys, digests=names))
        holder = await visit.ask(functools.partial(find_holder, digests=names))
        if stored or holder is not None or await _find_work(visit, names) is not None:
            candidates[operation] = visit.url(
                f"/keys/{'.'.join(name.hex() for name in names)}", route="known", hash=hash_key(key)
            )
    if len(candidates) == 1:
        [address] = candidates.values()
        return RedirectResponse(address, 303)
    tried = f"{min(len(operations), ROUTES_MAX)} of {len(operations)} routes were tried"
    said = "has something stored or running under this principal and key"
    said = f"More than one route {said}:" if candidates else f"No route of the application {said}; {tried}."
    return await _render_list(visit, typed=visit.form, found=said, candidates=candidates)


async def show_one(visit: Visit) -> Response:
    names = _names(visit)
    keys = await visit.ask(functools.partial(find_keys, digests=names))
    holder = await visit.ask(functools.partial(find_holder, digests=names))
    work = await _find_work(visit, names)
    if work is not None:
        work = replace(work, reason=visit.error(work.reason))
    erased = None if keys or holder or work else await _find_erasure(visit, names)
    verdict = judge_key(keys, holder, work, route=_read_route(visit), erased=erased)
    key_hash = visit.query("hash")
    return visit.render(
        "key.html",
        names=visit.param("names"),
        keys=keys,
        holder=holder,
        work=work,
        verdict=verdict,
        id=names[0].hex(),
        erased=erased,
        key_hash=key_hash if read_digest(key_hash) else "",
        trace=await _find_trace(visit, verdict.key),
        stored=_stored_ms(visit, keys),
    )


async def reveal(visit: Visit) -> Response:
    """The stored answer. It is an answer to one of the application's users: who looked is written down."""
    digest = read_digest(visit.form.get("key", ""))
    if digest is None or digest not in _names(visit):
        raise missing("There is no such key.")
    record = await visit.ask(functools.partial(show_answer, digest=digest, actor=visit.operator.name))
    if record is None:
        raise missing("Nothing is stored under this key any more.")
    answer = read_answer(record, visit.once._layer.reading)
    return visit.render("key_answer.html", names=visit.param("names"), record=record, answer=answer)


async def confirm_erase(visit: Visit) -> Response:
    return await _render_erase(visit)


async def do_erase(visit: Visit) -> Response:
    why = visit.reason()
    if why is None:
        return await _render_erase(visit, problem=ASK_WHY)
    seen = visit.form.get("seen", "").split(" ")
    question = functools.partial(erase, digests=_names(visit), actor=visit.operator.name, why=why, seen=seen)
    erased = await visit.ask(question)
    if not erased:
        raise HTTPException(409, "What was to be erased is not stored any more, and nothing was done. Look again.")
    if (cached := visit.once._layer.cached) is not None:
        await visit.ask(lambda _: cached.forget(_names(visit)))
    return visit.redirect(f"/keys/{visit.param('names')}", erased=1)


async def _render_list(
    visit: Visit,
    *,
    problem: str = "",
    typed: Mapping[str, str] | None = None,
    found: str = "",
    candidates: Mapping[str, str] | None = None,
) -> Response:
    after = visit.query("after") or None
    page = await visit.ask(functools.partial(list_keys, after=after))
    routes = sorted({*_operations(visit), *(key.operation for key in page.keys)})
    return visit.render(
        "keys.html",
        page=page,
        routes=routes,
        problem=problem,
        typed=typed or {},
        after=after,
        stored=_stored_ms(visit, page.keys),
        is_single=_is_single(visit),
        knows_routes=bool(_operations(visit)),
        found=found,
        candidates=candidates or {},
    )


async def _render_erase(visit: Visit, *, problem: str = "") -> Response:
    names = _names(visit)
    keys = await visit.ask(functools.partial(find_keys, digests=names))
    if not keys:
        raise missing("Nothing is stored under this key: there is nothing to erase.")
    return visit.render("key_erase.html", names=visit.param("names"), key=_main(keys), keys=keys, problem=problem)


async def _find_work(visit: Visit, names: tuple[bytes, ...]) -> WorkView | None:
    for name in names:
        try:
            work, _ = await visit.ask(functools.partial(show_work, work_id=name.hex()))
        except WorkNotFit:
            continue
        return work
    return None


async def _find_erasure(visit: Visit, names: tuple[bytes, ...]) -> AuditLine | None:
    for name in names:
        line = await visit.ask(functools.partial(find_audit, action="keys erase", about={"keys": [name.hex()]}))
        if line is not None:
            return line
    return None


async def _find_trace(visit: Visit, key: KeyView | None) -> str:
    """The id of the trace that a request ran in, where its record has it and can be opened here."""
    record = None
    if key is not None and key.state != "elsewhere":
        record = await visit.ask(functools.partial(find_head, digest=bytes.fromhex(key.id)))
    if record is None:
        return ""
    try:
        parts = read_span(record, visit.once._layer.reading).get("traceparent", "").split("-")
    except UnreadableAnswer:
        return ""
    return parts[1] if len(parts) >= 4 else ""


def _stored_ms(visit: Visit, keys: Sequence[KeyView]) -> dict[str, int]:
    """When each was stored, as its end and what the route keeps answers for say. A deploy before may have kept them for
    another time: it is about then. Not of those whose route is not known."""
    retentions = retentions_of(_operations(visit))
    known = [(key, retentions[key.operation]) for key in keys if key.operation in retentions]
    found = {key.id: key.expires_ms - round(retention_s * 1000) for key, retention_s in known}
    return {key.id: min(found[key.id], key.now_ms) for key, _ in known}


def _is_single(visit: Visit) -> bool:
    """Whether all callers of the application are one principal."""
    policies = _operations(visit).values()
    return bool(policies) and all(policy.principal is single_principal for policy in policies)


def _read_route(visit: Visit) -> RouteKnown:
    match visit.query("route"):
        case "known" | "unknown" | "unchecked" as route:
            return route
        case _:
            return "digest"


def _main(keys: tuple[KeyView, ...]) -> KeyView:
    """The record with the answer, or else what is there."""
    return next((key for key in keys if key.state == "done"), keys[0])


def _names(visit: Visit) -> tuple[bytes, ...]:
    found = [read_digest(name) for name in visit.param("names").split(".")[: NAMES_MAX + 1]]
    names = tuple(digest for digest in found if digest is not None)
    if len(names) != len(found) or len(names) > NAMES_MAX:
        raise missing("This is not an address of a key: search for it.")
    return names


def _operations(visit: Visit) -> dict[str, Policy]:
    """Those of the application, where the console is mounted into it or was given it."""
    return {name: policy for known in visit.once._layer.applications for name, policy in known.operations().items()}


SECTION = Section(
    title="Keys",
    path="/keys",
    pages=(
        Page(path="/keys", answer=show_list),
        Page(path="/keys/find", answer=find, method="POST"),
        Page(path="/keys/{names}", answer=show_one),
        Page(path="/keys/{names}/answer", answer=reveal, method="POST", role=Role.ACT),
        Page(path="/keys/{names}/erase", answer=confirm_erase, role=Role.ACT),
        Page(path="/keys/{names}/erase", answer=do_erase, method="POST", role=Role.ACT),
    ),
)
