"""Keys: found by principal, route and key; what became of one, why it is held, its stored answer, erasing it.

A key is addressed by the digests that it may be stored under, so that neither it nor its principal stands in an
address, a log or a history.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from onefold._console.key_search import (
    ROUTES_MAX,
    KeySearch,
    NotSearchable,
    find_stored,
    is_single,
    look_up,
    plan_search,
    stored_ms,
)
from onefold._console.key_verdicts import RouteKnown
from onefold._console.roles import Role
from onefold._console.sections import ASK_WHY, Page, Section, Visit, missing
from onefold._console.stored_answers import read_answer
from onefold._http.route_policy import Policy
from onefold._http.stored_response import read_span
from onefold._idempotency.encryption import UnreadableAnswer
from onefold._idempotency.stored_keys import (
    NAMES_MAX,
    KeyView,
    erase,
    find_head,
    find_keys,
    list_keys,
    read_digest,
    show_answer,
)


async def show_list(visit: Visit) -> Response:
    return await _render_list(visit)


async def find(visit: Visit) -> Response:
    """Find the key that the operator describes, and redirect to its page. By POST: the key stays out of addresses and
    logs."""
    principal, route, key = (visit.form.get(name, "").strip() for name in ("principal", "route", "key"))
    operations = _operations(visit)
    try:
        searches = plan_search(principal, route, key, operations)
    except NotSearchable as problem:
        return await _render_list(visit, problem=str(problem), typed=visit.form)
    candidates = await visit.run(functools.partial(find_stored, searches=searches))
    if len(candidates) == 1:
        [search] = candidates.values()
        return RedirectResponse(_address(visit, search), 303)
    tried = f"{min(len(operations), ROUTES_MAX)} of {len(operations)} routes were tried"
    said = "has something stored or running under this principal and key"
    said = f"More than one route {said}:" if candidates else f"No route of the application {said}; {tried}."
    found = {operation: _address(visit, search) for operation, search in candidates.items()}
    return await _render_list(visit, typed=visit.form, found=said, candidates=found)


async def show_one(visit: Visit) -> Response:
    names = _names(visit)
    found = await visit.run(functools.partial(look_up, names=names))
    reason = None if found.work is None else visit.error(found.work.reason)
    verdict = found.judge(_read_route(visit), reason=reason)
    key_hash = visit.query("hash")
    return visit.render(
        "key.html",
        names=visit.param("names"),
        keys=found.keys,
        holder=found.holder,
        work=found.work,
        verdict=verdict,
        id=names[0].hex(),
        erased=found.erased,
        key_hash=key_hash if read_digest(key_hash) else "",
        trace=await _find_trace(visit, verdict.key),
        stored=stored_ms(found.keys, _operations(visit)),
    )


async def reveal(visit: Visit) -> Response:
    """Show the stored answer. It belongs to one of the application's users, so the access is audited."""
    digest = read_digest(visit.form.get("key", ""))
    if digest is None or digest not in _names(visit):
        raise missing("There is no such key.")
    record = await visit.run(functools.partial(show_answer, digest=digest, actor=visit.operator.name))
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
    stamps = visit.form.get("seen", "").split(" ")
    make_flow = functools.partial(erase, digests=_names(visit), actor=visit.operator.name, why=why, seen=stamps)
    erased = await visit.run(make_flow)
    if not erased:
        raise HTTPException(409, "The stored answer has changed or is gone, and nothing was done. Look again.")
    if (cached := visit.once._layer.cached) is not None:
        await visit.run(lambda _: cached.forget(_names(visit)))
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
    page = await visit.run(functools.partial(list_keys, after=after))
    routes = sorted({*_operations(visit), *(key.operation for key in page.keys)})
    return visit.render(
        "keys.html",
        page=page,
        routes=routes,
        problem=problem,
        typed=typed or {},
        after=after,
        stored=stored_ms(page.keys, _operations(visit)),
        is_single=is_single(_operations(visit)),
        knows_routes=bool(_operations(visit)),
        found=found,
        candidates=candidates or {},
    )


async def _render_erase(visit: Visit, *, problem: str = "") -> Response:
    names = _names(visit)
    keys = await visit.run(functools.partial(find_keys, digests=names))
    if not keys:
        raise missing("Nothing is stored under this key: there is nothing to erase.")
    return visit.render("key_erase.html", names=visit.param("names"), key=_main(keys), keys=keys, problem=problem)


async def _find_trace(visit: Visit, key: KeyView | None) -> str:
    """The id of the trace that a request ran in, where its record has it and can be opened here."""
    record = None
    if key is not None and key.state != "elsewhere":
        record = await visit.run(functools.partial(find_head, digest=bytes.fromhex(key.id)))
    if record is None:
        return ""
    try:
        parts = read_span(record, visit.once._layer.reading).get("traceparent", "").split("-")
    except UnreadableAnswer:
        return ""
    return parts[1] if len(parts) >= 4 else ""


def _address(visit: Visit, search: KeySearch) -> str:
    names = ".".join(name.hex() for name in search.names)
    return visit.url(f"/keys/{names}", route=search.route, hash=search.key_hash)


def _read_route(visit: Visit) -> RouteKnown:
    match visit.query("route"):
        case "known" | "unknown" | "unchecked" as route:
            return route
        case _:
            return "digest"


def _main(keys: tuple[KeyView, ...]) -> KeyView:
    """The record with the answer, or else the first one."""
    return next((key for key in keys if key.state == "done"), keys[0])


def _names(visit: Visit) -> tuple[bytes, ...]:
    found = [read_digest(name) for name in visit.param("names").split(".")[: NAMES_MAX + 1]]
    names = tuple(digest for digest in found if digest is not None)
    if len(names) != len(found) or len(names) > NAMES_MAX:
        raise missing("This is not an address of a key: search for it.")
    return names


def _operations(visit: Visit) -> dict[str, Policy]:
    """The operations of the application, if the console is mounted into it or runs with --app."""
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
