"""Dead letters: the list with reasons, one message with its attempts side by side, and the actions: redrive, discard,
skip. Each action is shown first, as a dry run."""

from __future__ import annotations

import base64
import difflib
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from onefold._app.operator_actions import discard_fitting, discard_letters
from onefold._console.roles import Role
from onefold._console.sections import ASK_WHY, Page, Section, Visit, missing
from onefold._console.shown_bounds import FIELD, bind, read_bound, require_bound, write_bound
from onefold._console.stored_answers import BODY_CHARS_MAX
from onefold._inbox.consumer import DAY_S
from onefold._inbox.discard_and_skip import resume_at, skip
from onefold._inbox.failed_lists import (
    find_failed,
    list_dead,
    list_failed_consumers,
    list_jobs,
    list_waiting,
    tally_failed,
)
from onefold._inbox.redrive import REDRIVE_MAX, FailedMessageNotFit, Filter, cancel, job_of, preview, redrive
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.audit import write_audit

#: Counts end here: a page is quick however many there are.
COUNT_MAX: Final = 1001
PREVIEW_MAX: Final = 10_001
PAGE: Final = 50
CONSUMERS_MAX: Final = 50

#: How much of a traceback is shown before it is unfolded.
_FRAMES: Final = 2


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failure of a message."""

    number: int
    at: str
    error: str
    traceback: str
    same: bool
    """As the one before it."""

    @property
    def end(self) -> str:
        """The last frames and the error: those before them are mostly onefold's own."""
        lines = self.traceback.splitlines()
        frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
        return "\n".join(lines[frames[-_FRAMES] :]) if len(frames) > _FRAMES else self.traceback


async def show_list(visit: Visit) -> Response:
    """All consumers, and the dead letters of the one that is chosen."""
    names = await visit.run(list_failed_consumers)
    tallies = await visit.run(partial(tally_failed, count_max=COUNT_MAX, consumers_max=CONSUMERS_MAX))
    with_dead = [tally.consumer for tally in tallies if tally.dead] or names
    consumer = visit.query("consumer") or (with_dead[0] if with_dead else "")
    chosen = _read_filter(visit, consumer)
    waiting = visit.query("state") == "waiting"
    after = visit.query("after") or None
    if waiting:
        letters = tuple(await visit.run(partial(list_waiting, consumer=consumer, limit=PAGE)))
        following = None
    else:
        page = await visit.run(partial(list_dead, chosen=chosen, after=after, limit=PAGE))
        letters, following = page.letters, page.after
    return visit.render(
        "dead_letters.html",
        tallies=tallies,
        consumers=len(names),
        consumer=consumer,
        chosen=chosen,
        waiting=waiting,
        letters=letters,
        following=following,
        discarded=_read_number(visit.query("discarded")),
        count_max=COUNT_MAX,
        page=PAGE,
    )


async def show_letter(visit: Visit) -> Response:
    """One failed message, without its data."""
    return await _render_letter(visit, visit.query("consumer"), visit.query("id"))


async def reveal(visit: Visit) -> Response:
    """The same with its data. The access is audited."""
    consumer, message_id = visit.form.get("consumer", ""), visit.form.get("id", "")
    await _find(visit, consumer, message_id)
    await visit.run(
        partial(
            write_audit, actor=visit.operator.name, action="show data", details={"id": message_id}, consumer=consumer
        )
    )
    return await _render_letter(visit, consumer, message_id, revealed=True)


async def confirm_redrive(visit: Visit) -> Response:
    """What a redrive would do: nothing is changed."""
    return await _render_redrive(visit, _read_filter(visit, visit.query("consumer")))


async def start_redrive(visit: Visit) -> Response:
    chosen = _filter_of(visit.form)
    why, rate, limit = visit.reason(), _read_rate(visit.form.get("rate", "")), _read_number(visit.form.get("limit", ""))
    if why is None:
        return await _render_redrive(visit, chosen, problem=ASK_WHY)
    if rate is None:
        return await _render_redrive(visit, chosen, problem="The rate must be between 0.001 and 100000 per second.")
    if not 1 <= limit <= REDRIVE_MAX:
        return await _render_redrive(visit, chosen, problem=f"At most must be between 1 and {REDRIVE_MAX}.")
    settings: dict[str, Any] = {"actor": visit.operator.name, "per_second": rate, "limit": limit, "why": why}
    if chosen.ids is None:
        require_bound(chosen.until)
    job = await visit.run(partial(redrive, chosen=chosen, **settings))
    return visit.redirect(f"/dead-letters/jobs/{job.id}")


async def confirm_discard(visit: Visit) -> Response:
    """What would be deleted: nothing is changed."""
    return await _render_discard(visit, _read_filter(visit, visit.query("consumer")))


async def do_discard(visit: Visit) -> Response:
    chosen, why = _filter_of(visit.form), visit.reason()
    if why is None:
        return await _render_discard(visit, chosen, problem=ASK_WHY)
    named: dict[str, Any] = {"actor": visit.operator.name, "why": why}
    if chosen.ids is not None:
        count = await visit.run(partial(discard_letters, consumer=chosen.consumer, ids=chosen.ids, **named))
    else:
        require_bound(chosen.until)
        count = await visit.run(partial(discard_fitting, chosen=chosen, **named))
    return visit.redirect("/dead-letters", consumer=chosen.consumer, discarded=count)


async def move_on(visit: Visit) -> Response:
    """Skip the dead letter at the head of a strict stream, or go on with a waiting one."""
    consumer, message_id = visit.form.get("consumer", ""), visit.form.get("id", "")
    why = visit.reason()
    if why is None:
        return await _render_letter(visit, consumer, message_id, problem=ASK_WHY)
    verb = skip if visit.form.get("verb") == "skip" else resume_at
    try:
        await visit.run(partial(verb, consumer=consumer, message_id=message_id, actor=visit.operator.name, why=why))
    except FailedMessageNotFit as error:
        return await _render_letter(visit, consumer, message_id, problem=str(error))
    return visit.redirect("/dead-letters/letter", consumer=consumer, id=message_id)


async def show_jobs(visit: Visit) -> Response:
    jobs = await visit.run(partial(list_jobs, limit=PAGE))
    return visit.render("redrives.html", jobs=jobs)


async def show_job(visit: Visit) -> Response:
    return await _render_job(visit)


async def cancel_job(visit: Visit) -> Response:
    why = visit.reason()
    if why is None:
        return await _render_job(visit, problem=ASK_WHY)
    try:
        job = await visit.run(partial(cancel, job_id=visit.param("id"), actor=visit.operator.name, why=why))
    except FailedMessageNotFit:
        raise _missing_job(visit) from None
    return visit.redirect(f"/dead-letters/jobs/{job.id}")


async def _render_job(visit: Visit, problem: str = "") -> Response:
    try:
        job = await visit.run(partial(job_of, job_id=visit.param("id")))
    except FailedMessageNotFit:
        raise _missing_job(visit) from None
    return visit.render("redrive.html", job=job, problem=problem)


def _missing_job(visit: Visit) -> HTTPException:
    return missing(f"There is no redrive {visit.param('id')}.")


async def _render_redrive(visit: Visit, chosen: Filter, problem: str = "") -> Response:
    chosen = await _bind(visit, chosen)
    settings: dict[str, Any] = {"dead_letter_s": 7 * DAY_S, "count_max": PREVIEW_MAX}
    found = await visit.run(partial(preview, chosen=chosen, **settings))
    return visit.render(
        "redrive_confirm.html",
        chosen=chosen,
        fields=_fields_of(chosen),
        found=found,
        problem=problem,
        rate=visit.form.get("rate", "10"),
        limit=visit.form.get("limit", "10000"),
        limit_max=REDRIVE_MAX,
    )


async def _render_discard(visit: Visit, chosen: Filter, problem: str = "") -> Response:
    chosen = await _bind(visit, chosen)
    found = await visit.run(partial(preview, chosen=chosen, count_max=PREVIEW_MAX))
    return visit.render(
        "discard_confirm.html",
        chosen=chosen,
        fields=_fields_of(chosen),
        found=found,
        total=found.matched,
        problem=problem,
    )


async def _bind(visit: Visit, chosen: Filter) -> Filter:
    """Bind a filter to the present matches, unless it has a bound already."""
    return chosen if chosen.ids is not None else replace(chosen, until=await bind(visit, chosen.until))


async def _render_letter(
    visit: Visit, consumer: str, message_id: str, *, revealed: bool = False, problem: str = ""
) -> Response:
    letter = await _find(visit, consumer, message_id)
    attempts = compare_attempts(letter)
    first, second = _chosen_pair(visit, attempts)
    message = letter.message
    return visit.render(
        "dead_letter.html",
        letter=letter,
        consumer=consumer,
        message=message,
        key=message.key if message else letter.origin.key,
        correlation=letter.headers.get("correlation-id")
        or (message.headers.get("correlation-id") if message else None),
        attempts=attempts,
        has_order=_has_order(visit, consumer),
        first=first,
        second=second,
        difference=difference(attempts, first, second),
        data=write_data(letter.data) if revealed else None,
        problem=problem,
    )


async def _find(visit: Visit, consumer: str, message_id: str) -> FailedMessage:
    letter = await visit.run(partial(find_failed, consumer=consumer, message_id=message_id))
    if letter is None:
        raise missing(
            f"There is no failed message {message_id} of {consumer}: it was handled, discarded, or never there."
        )
    return letter


def _has_order(visit: Visit, consumer: str) -> bool:
    """Whether a message may hold up others of its key; assumed of consumers that are not known here."""
    return all(known.order != "none" for known in visit.once.consumers if known.name == consumer)


def compare_attempts(letter: FailedMessage) -> list[FailedAttempt]:
    """Its last failures, the oldest first, each marked where it is the same as the one before."""
    attempts: list[FailedAttempt] = []
    for number, failure in enumerate(letter.history, start=1):
        same = bool(attempts) and (attempts[-1].error, attempts[-1].traceback) == (
            failure["error"],
            failure["traceback"],
        )
        attempts.append(FailedAttempt(number, failure["at"], failure["error"], failure["traceback"], same))
    return attempts


def difference(attempts: list[FailedAttempt], first: int, second: int) -> list[tuple[str, str]]:
    """The lines in which two attempts differ, each with its mark: '+', '-' or ' '."""
    if not attempts or first == second:
        return []
    one, two = attempts[first - 1], attempts[second - 1]
    lines = difflib.unified_diff(_lines(one), _lines(two), f"attempt {first}", f"attempt {second}", lineterm="", n=3)
    return [(line[:1], line) for line in lines]


def write_data(data: bytes) -> str:
    """The data as JSON, text, or Base64. Of large data the beginning: rendering megabytes would block the event loop,
    and with it the application."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(data[:BODY_CHARS_MAX]).decode()
    if len(data) <= BODY_CHARS_MAX:
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    cut = f"\n… the beginning of {len(data):,} bytes" if max(len(data), len(text)) > BODY_CHARS_MAX else ""
    return text[:BODY_CHARS_MAX] + cut


def _lines(attempt: FailedAttempt) -> list[str]:
    return [attempt.error, *attempt.traceback.splitlines()]


def _chosen_pair(visit: Visit, attempts: list[FailedAttempt]) -> tuple[int, int]:
    """The two attempts to compare: those of the address, or the last one and the last that failed differently."""
    count = len(attempts)
    first, second = _read_number(visit.query("first")), _read_number(visit.query("second"))
    if 1 <= first <= count and 1 <= second <= count:
        return first, second
    others = [each.number for each in attempts if _lines(each) != _lines(attempts[-1])]
    return others[-1] if others else max(1, count - 1), max(1, count)


def _read_filter(visit: Visit, consumer: str) -> Filter:
    # An operator who may not read errors may not search in them either.
    named = ("topic", "contains", "id") if visit.may_act else ("topic", "id")
    return _filter_of({**{name: visit.query(name) for name in named}, "consumer": consumer})


def _filter_of(fields: Any) -> Filter:
    chosen = Filter(
        consumer=fields.get("consumer", ""),
        topic=fields.get("topic") or None,
        reason=fields.get("contains") or None,
        until=read_bound(fields),
    )
    return replace(chosen, ids=(fields["id"],)) if fields.get("id") else chosen


def _fields_of(chosen: Filter) -> dict[str, str]:
    """The fields of a form, or an address, for this filter."""
    named = {"consumer": chosen.consumer, "topic": chosen.topic, "contains": chosen.reason}
    named["id"] = chosen.ids[0] if chosen.ids else None
    named[FIELD] = write_bound(chosen.until)
    return {name: value for name, value in named.items() if value}


def _read_number(text: str) -> int:
    """The number; 0 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


def _read_rate(text: str) -> float | None:
    try:
        rate = float(text)
    except ValueError:
        return None
    return rate if 0.001 <= rate <= 100_000 else None


SECTION = Section(
    title="Dead letters",
    path="/dead-letters",
    pages=(
        Page(path="/dead-letters", answer=show_list),
        Page(path="/dead-letters/letter", answer=show_letter),
        Page(path="/dead-letters/letter", answer=reveal, method="POST", role=Role.ACT),
        Page(path="/dead-letters/move-on", answer=move_on, method="POST", role=Role.ACT),
        Page(path="/dead-letters/redrive", answer=confirm_redrive),
        Page(path="/dead-letters/redrive", answer=start_redrive, method="POST", role=Role.ACT),
        Page(path="/dead-letters/discard", answer=confirm_discard),
        Page(path="/dead-letters/discard", answer=do_discard, method="POST", role=Role.ACT),
        Page(path="/dead-letters/jobs", answer=show_jobs),
        Page(path="/dead-letters/jobs/{id}", answer=show_job),
        Page(path="/dead-letters/jobs/{id}", answer=cancel_job, method="POST", role=Role.ACT),
    ),
)
