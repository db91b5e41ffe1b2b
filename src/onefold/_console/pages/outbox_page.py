"""The outbox: what waits, by topic and key; what is stuck, and what is done about it; a correlation id's timeline."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from starlette.exceptions import HTTPException
from starlette.responses import Response

from onefold._console.roles import Role
from onefold._console.sections import ASK_WHY, Page, Section, Visit
from onefold._console.shown_bounds import FIELD, bind, read_bound, require_bound, write_bound
from onefold._console.timeline import draw_timeline
from onefold._idempotency.stored_keys import NAMES_MAX, KeyView, find_keys, read_digest
from onefold._inbox.message_traces import trace_messages
from onefold._kernel.messages import ATTRIBUTE_LENGTH_MAX
from onefold._outbox.event_lists import (
    BEHIND_MAX,
    ListedEvent,
    act_on_stopped,
    list_dead_events,
    list_retrying,
    list_waiting,
    list_waiting_for,
    look_at_key,
    trace_events,
)
from onefold._outbox.status_report import Chosen, list_stopped, report

COUNT_MAX: Final = 1000
LIMIT: Final = 50
TRACE_MAX: Final = 200

Action = Literal["retry", "discard"]
_ACTIONS: Final[tuple[Action, ...]] = ("retry", "discard")


async def show(visit: Visit) -> Response:
    """Waiting events: per topic, and page by page."""
    destination = visit.query("topic")
    found = await visit.run(lambda dialect: report(dialect, count_max=COUNT_MAX, stopped_max=COUNT_MAX))
    after = visit.query("after")
    page = await visit.run(
        lambda dialect: (
            list_waiting_for(dialect, destination, limit=LIMIT)
            if destination
            else list_waiting(dialect, after=after, limit=LIMIT)
        )
    )
    return visit.render(
        "outbox.html", found=found, page=page, topic=destination, count_max=COUNT_MAX, limit=LIMIT, now_ms=_now(visit)
    )


async def show_key(visit: Visit) -> Response:
    """The events of one key, in their order."""
    topic, key = visit.query("topic").strip(), visit.query("key").strip()
    source = visit.query("source").strip() or visit.once._outbox.source or ""
    hint = ""
    if any(len(text) > ATTRIBUTE_LENGTH_MAX for text in (topic, key, source)):
        hint = f"Topic, key and source have at most {ATTRIBUTE_LENGTH_MAX} characters each."
    elif not (topic and key and source):
        hint = "Give a topic, a key, and the source: the name of the service that publishes."
    found = None
    if not hint:
        after = visit.query("after")
        found = await visit.run(lambda dialect: look_at_key(dialect, source, topic, key, after=after, limit=LIMIT))
    return visit.render(
        "outbox_key.html", topic=topic, key=key, source=source, hint=hint, found=found, now_ms=_now(visit)
    )


async def show_stuck(visit: Visit) -> Response:
    """Refused events: dead letters of the outbox, and retried ones; and how many events wait behind each."""
    kind = "retrying" if visit.query("show") == "retrying" else "dead"
    after = visit.query("after")
    list_some = list_retrying if kind == "retrying" else list_dead_events
    page = await visit.run(lambda dialect: list_some(dialect, after=after, limit=LIMIT))
    return visit.render(
        "outbox_stuck.html", kind=kind, page=page, behind_max=BEHIND_MAX, now_ms=_now(visit), done=visit.query("done")
    )


async def trace(visit: Visit) -> Response:
    """One correlation id: its events and what became of them."""
    name = visit.query("id").strip()
    if not name:
        return visit.render("trace.html", name="", timeline=None, cut=False, now_ms=_now(visit))
    if len(name) > 512:
        problem = "A correlation id has at most 512 characters."
        return visit.render("trace.html", name="", timeline=None, cut=False, now_ms=_now(visit), problem=problem)
    events = await visit.run(lambda dialect: trace_events(dialect, name, limit=TRACE_MAX))
    message_ids = [(event.source, event.id) for event in events] or [("", name)]
    traces = await visit.run(lambda dialect: trace_messages(dialect, message_ids, name, limit=TRACE_MAX))
    cut = TRACE_MAX in (len(events), len(traces.handled), len(traces.failed))
    timeline = draw_timeline(events, traces, await _find_records(visit, events))
    return visit.render("trace.html", name=name, timeline=timeline, cut=cut, now_ms=_now(visit))


async def _find_records(visit: Visit, events: Sequence[ListedEvent]) -> dict[str, KeyView]:
    """The records of the requests that published these, by their digests."""
    named = dict.fromkeys(event.request.digest for event in events if event.request is not None)
    digests = [digest for digest in map(read_digest, named) if digest is not None]
    found: dict[str, KeyView] = {}
    for start in range(0, len(digests), NAMES_MAX):
        some = digests[start : start + NAMES_MAX]
        found |= {key.id: key for key in await visit.run(functools.partial(find_keys, digests=some))}
    return found


# --- actions on stuck events ----------------------------------------------------------------------------------


async def confirm(visit: Visit) -> Response:
    """Show what an action would do: nothing is changed here."""
    return await _confirm(visit, visit.request.query_params)


async def _confirm(visit: Visit, given: Any, problem: str = "") -> Response:
    action, chosen = _read_action(given)
    if chosen.ids is None:
        chosen = replace(chosen, until=await bind(visit, chosen.until))
    found = await visit.run(lambda dialect: list_stopped(dialect, chosen, limit=COUNT_MAX))
    return visit.render(
        "outbox_confirm.html", action=action, found=found, count_max=COUNT_MAX, problem=problem,
        fields={**{name: given.get(name, "") for name in ("do", "id", "topic")}, FIELD: write_bound(chosen.until)},
        shown=found[:20],
    )  # fmt: skip


async def act(visit: Visit) -> Response:
    """Retry or discard the confirmed events."""
    action, chosen = _read_action(visit.form)
    why = visit.reason()
    if why is None:
        return await _confirm(visit, visit.form, ASK_WHY)
    if chosen.ids is None:
        require_bound(chosen.until)
    actor = visit.operator.name
    count = await visit.run(lambda dialect: act_on_stopped(dialect, action, chosen, actor=actor, why=why))
    done = f"{'tried again' if action == 'retry' else 'discarded'}: {count}"
    return visit.redirect("/outbox/stuck", done=done)


def _read_action(fields: Any) -> tuple[Action, Chosen]:
    verb, event_id, topic = fields.get("do", ""), fields.get("id", ""), fields.get("topic", "")
    for action in _ACTIONS:
        if verb == action:
            break
    else:
        raise HTTPException(400, "Say what is to be done: retry or discard.")
    if event_id:
        return action, Chosen(ids=(event_id,))
    if topic:
        return action, Chosen(topic=topic, dead=True, until=read_bound(fields))
    raise HTTPException(400, "Say which event, or the dead letters of which topic.")


def _now(visit: Visit) -> int:
    return int(visit.parts.now() * 1000)


SECTION = Section(
    title="Outbox",
    path="/outbox",
    pages=(
        Page(path="/outbox", answer=show),
        Page(path="/outbox/key", answer=show_key),
        Page(path="/outbox/stuck", answer=show_stuck),
        Page(path="/outbox/trace", answer=trace),
        Page(path="/outbox/act", answer=confirm, role=Role.ACT),
        Page(path="/outbox/act", answer=act, method="POST", role=Role.ACT),
    ),
)
