"""Operator actions that concern messages and works together, shared by the command line and the console. Each writes to
the audit."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from onefold._inbox.consumer import DAY_S
from onefold._inbox.discard_and_skip import discard, discard_all
from onefold._inbox.failed_lists import find_failed, list_failed_consumers
from onefold._inbox.failed_messages import kept_names
from onefold._inbox.message_identity import identity_of
from onefold._inbox.redrive import Filter, redrive
from onefold._inbox.stored_message import FailedMessage
from onefold._kernel.results import encode_result
from onefold._steps.message_work import MessageName, forget_message, read_operation
from onefold._steps.sealing import Sealing, is_sealed, step_context
from onefold._steps.unfinished_works import StepView, WorkNotFit, WorkView, find_call_to_decide, resume, show_work
from onefold.errors import ConfigurationError, WorkUnreadable

_ANY_AGE_S: Final = 3650 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A work that goes on."""

    work: WorkView
    redriven: int | None
    """How many dead letters of its message are redriven; 0: it goes on when it is due. None: the work has no
    message."""


async def discard_letters(
    dialect: str, consumer: str, ids: tuple[str, ...], *, actor: str, why: str = "", force: bool = False
) -> int:
    """Delete these dead letters for good, and what is recorded of their steps; how many. Waiting ones with `force`."""
    forget = functools.partial(forget_message, dialect)
    return await discard(dialect, consumer, ids, actor=actor, force=force, why=why, forget=forget)


async def discard_fitting(dialect: str, chosen: Filter, *, actor: str, why: str = "") -> int:
    """`discard_letters` for all that fit."""
    return await discard_all(dialect, chosen, actor=actor, why=why, forget=functools.partial(forget_message, dialect))


async def find_message_work(dialect: str, consumer: str, kept: FailedMessage) -> WorkView | None:
    """The unfinished work of a failed message whose handler works in steps. None: nothing is recorded of it."""
    if kept.message is None:
        return None
    try:
        name = MessageName(consumer, kept.message.source, kept.message.id)
        work, _ = await show_work(dialect, name.digest.hex())
    except WorkNotFit:
        return None
    return work


async def find_message_works(dialect: str, message_id: str) -> list[WorkView]:
    """The unfinished works of all failed messages that are kept under this id, one for each consumer at most."""
    works: list[WorkView] = []
    for consumer in await list_failed_consumers(dialect):
        kept = await find_failed(dialect, consumer, message_id)
        work = None if kept is None else await find_message_work(dialect, consumer, kept)
        if work is not None:
            works.append(work)
    return works


async def resume_work(
    dialect: str,
    work_id: str,
    *,
    actor: str,
    why: str = "",
    result: bytes | None = None,
    again: bool = False,
    seen: StepView | None = None,
) -> Resumed:
    """Let a work go on, as `unfinished_works.resume` does. A message that waits as a dead letter is redriven, however
    old it is: that its work is there says that it was not handled. A crash between the two leaves a work that can go
    on, and a dead letter: resuming it once more does the rest."""
    work = await resume(dialect, work_id, actor=actor, why=why, result=result, again=again, seen=seen)
    if work.kind != "message":
        return Resumed(work=work, redriven=None)
    name = read_operation(work.operation)
    stored_ids = await kept_names(dialect, name.consumer, identity_of(name.message_id, name.source))
    if not stored_ids:
        return Resumed(work=work, redriven=0)
    chosen = Filter(consumer=name.consumer, ids=stored_ids)
    job = await redrive(dialect, chosen, actor=actor, why=why, dead_letter_s=_ANY_AGE_S)
    return Resumed(work=work, redriven=job.failed_messages)


def read_result(text: str, *, what: str) -> Any:
    """Parse the result of a call that an operator enters. `what`: the option or field, for the error."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError as error:
        raise ConfigurationError(f"{what} is not JSON: {error}; text is written in quotes: '\"paid\"'") from None


def store_result(work: WorkView, steps: Sequence[StepView], value: Any, sealing: Sealing | None, *, what: str) -> bytes:
    """Encode the operator's result for the call whose outcome is unknown, as it is stored. `sealing`: how the work's
    application seals results; None: unknown, so that it has to follow from the recorded results."""
    plain, call = encode_result(value, what=what), find_call_to_decide(steps)
    if call is None:
        return plain  # refused by `resume`, with what to do
    # Not an earlier result of this call: it is corrected now, perhaps because it was sealed in a wrong way.
    results = [step.result for step in steps if step.result and step.position != call.position]
    if (sealing is None or sealing.sealer is None) and (work.is_sealed or any(map(is_sealed, results))):
        raise ConfigurationError(
            f"results of work {work.id} are sealed: name the application that has the keys, --app shop.app:once"
        )
    if sealing is None:
        if work.kind != "request" and not results:
            raise ConfigurationError(
                f"work {work.id} has no recorded result that tells whether to seal: name its application, --app "
                "shop.app:once, or give --unsealed if that has no Keyring"
            )
        sealing = Sealing()
    return sealing.seal(plain, step_context(bytes.fromhex(work.id), call.position, call.name))


def read_unsealed(stored: bytes) -> Any:
    """Decode a result that was recorded without a seal. Raises ValueError, WorkUnreadable."""
    return json.loads(Sealing().unseal(stored, b"", what="the result"))


def show_result(step: StepView) -> str:
    """The result of a step, as far as it can be read without the keys of its application."""
    if step.result is None:
        return "-"
    if is_sealed(step.result):
        return "(sealed)"
    try:
        return json.dumps(read_unsealed(step.result), ensure_ascii=False)
    except (ValueError, WorkUnreadable):
        return "(not readable)"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a value of JSON")
