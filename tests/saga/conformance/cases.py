"""What every engine must do: one list of cases, which the test module of each engine runs.

A case gets an engine that runs `SAGAS` in this process, and an id that no other case uses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from onefold.errors import ConfigurationError, ResultNotSerializable
from onefold.sagas import (
    Compensated,
    HistoryEntry,
    SagaEngine,
    SagaMismatch,
    SagaNotStopped,
    SagaStatus,
    SagaStopped,
    SagaUnknown,
)
from onefold.testing.scripted_server import Reply, ScriptedServer
from tests.saga.conformance.sagas import (
    WORLD,
    Parcel,
    calling,
    forgiving,
    invoice,
    listening,
    mistaken,
    not_storable,
    order,
    patient,
    slow,
    twice,
    typed,
)
from tests.support.patience import PATIENCE_S

Case = Callable[[SagaEngine, str], Awaitable[None]]

DONE = ["reserve", "charge", "ship"]
FOREVER = 1_000_000


async def until(engine: SagaEngine, saga_id: str, *states: str) -> SagaStatus:
    """Wait until the saga is in one of these states."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status = await engine.status(saga_id)
            if status.state in states:
                return status
            await asyncio.sleep(0.02)


async def compensated(engine: SagaEngine, saga_id: str) -> Compensated:
    with pytest.raises(Compensated) as raised:
        await engine.result(saga_id, timeout_s=PATIENCE_S)
    return raised.value


async def seen(saga_id: str, action: str, times: int = 1) -> None:
    """Wait until a step has run so often."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if WORLD.of(saga_id).count(action) >= times:
                return
            await asyncio.sleep(0.02)


async def recorded(engine: SagaEngine, saga_id: str, step: str) -> None:
    """Wait until the journal has this step: one that has only run is run again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if step in [entry.name for entry in await engine.history(saga_id)]:
                return
            await asyncio.sleep(0.02)


async def retry(engine: SagaEngine, saga_id: str) -> None:
    """Have it go on, unless the engine has tried it again in between by itself."""
    with suppress(SagaNotStopped):
        await engine.retry(saga_id)


def short(history: Any) -> list[tuple[str, str]]:
    return [(entry.kind, entry.name) for entry in history]


def steps_of(history: Any) -> list[HistoryEntry]:
    return [entry for entry in history if entry.kind in ("step", "undo")]


async def a_saga_completes_and_each_step_has_its_own_key(engine: SagaEngine, saga_id: str) -> None:
    assert await engine.start(order, saga_id, {"item": "book"})
    result = await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert result == {"reserved": "reserved book", "paid": "book", "shipped": "shipped"}
    assert WORLD.of(saga_id) == DONE
    assert WORLD.keys(saga_id) == [f"{saga_id}:reserve", f"{saga_id}:charge", f"{saga_id}:ship"]
    status = await engine.status(saga_id)
    assert (status.saga, status.version, status.state, status.error) == ("conformance-order", "1", "completed", None)
    assert status.started_at is not None


async def a_second_start_is_the_same_saga(engine: SagaEngine, saga_id: str) -> None:
    given = {"item": "book", "b": [1, 2], "a": None}
    assert await engine.start(order, saga_id, given)
    assert not await engine.start(order, saga_id, {"a": None, "b": [1, 2], "item": "book"})
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert not await engine.start(order, saga_id, given)
    assert WORLD.of(saga_id) == DONE


async def many_starts_at_once_are_one_saga(engine: SagaEngine, saga_id: str) -> None:
    started = await asyncio.gather(*(engine.start(order, saga_id, {"item": "book"}) for _ in range(8)))
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert started.count(True) == 1
    assert WORLD.of(saga_id) == DONE


async def other_input_under_the_same_id_is_refused(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(order, saga_id, {"item": "book"})
    with pytest.raises(SagaMismatch, match="other input"):
        await engine.start(order, saga_id, {"item": "car"})
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    with pytest.raises(SagaMismatch, match="other input"):
        await engine.start(order, saga_id, {"item": "car"})


async def another_saga_under_the_same_id_is_refused(engine: SagaEngine, saga_id: str) -> None:
    """Both have a step `charge`, which would have one key."""
    await engine.start(order, saga_id, {"item": "book"})
    with pytest.raises(SagaMismatch, match="conformance-order"):
        await engine.start(invoice, saga_id, {"item": "book"})
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert WORLD.of(saga_id) == DONE


async def a_failed_step_is_tried_again_under_the_same_key(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(order, saga_id, {"item": "book", "fail": {"charge": 2}})
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert WORLD.of(saga_id) == ["reserve", "charge", "charge", "charge", "ship"]
    assert set(WORLD.keys(saga_id)) == {f"{saga_id}:reserve", f"{saga_id}:charge", f"{saga_id}:ship"}
    [charged] = [entry for entry in await engine.history(saga_id) if entry.name == "charge"]
    assert charged.attempts == 3
    assert charged.result == {"paid": "book"}


async def a_step_that_keeps_failing_is_compensated_in_reverse(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(order, saga_id, {"item": "book", "fail": {"ship": FOREVER}})
    error = await compensated(engine, saga_id)
    assert "ship is away" in error.error
    assert not error.cancelled
    assert WORLD.of(saga_id) == ["reserve", "charge", *["ship"] * 3, "unship", "refund", "release"]
    assert WORLD.keys(saga_id)[-3:] == [f"{saga_id}:{step}:undo" for step in ("ship", "charge", "reserve")]
    status = await engine.status(saga_id)
    assert status.state == "compensated"
    assert status.error is not None
    assert "ship is away" in status.error


async def an_abort_is_not_tried_again(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(order, saga_id, {"item": "book", "abort": ["charge"]})
    error = await compensated(engine, saga_id)
    assert "charge is refused" in error.error
    assert WORLD.of(saga_id) == ["reserve", "charge", "refund", "release"]


async def a_caught_step_goes_another_way(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(forgiving, saga_id, {"item": "book", "fail": {"charge": FOREVER}})
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == "shipped"
    assert WORLD.of(saga_id) == [*["charge"] * 3, "ship"]


async def a_compensation_that_fails_is_shown_and_tried_until_it_succeeds(engine: SagaEngine, saga_id: str) -> None:
    WORLD.broken.add(f"{saga_id}:charge:undo")
    await engine.start(order, saga_id, {"item": "book", "abort": ["ship"]})
    status = await until(engine, saga_id, "stuck")
    assert status.error is not None
    assert "charge" in status.error
    assert "refund is away" in status.error
    assert saga_id in [each.saga_id for each in await engine.list(state="stuck")]
    await seen(saga_id, "refund", 4)  # a round has three attempts
    assert "release" not in WORLD.of(saga_id)
    WORLD.broken.remove(f"{saga_id}:charge:undo")
    await compensated(engine, saga_id)
    assert WORLD.of(saga_id)[-1] == "release"
    assert WORLD.of(saga_id).count("release") == 1
    assert saga_id not in [each.saga_id for each in await engine.list(state="stuck")]


async def a_signal_is_waited_for(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(patient, saga_id, {"item": "book"})
    await seen(saga_id, "reserve")
    assert (await engine.status(saga_id)).state == "running"
    await engine.signal(saga_id, "other", {"of": "no interest"})
    await engine.signal(saga_id, "paid", {"by": "card"})
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == {"by": "card"}


async def a_signal_that_comes_early_is_kept(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(patient, saga_id, {"item": "book", "sleep_s": 0.5})
    await engine.signal(saga_id, "paid", ["early"])
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == ["early"]


async def a_signal_that_does_not_come_is_compensated(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(patient, saga_id, {"item": "book", "timeout_s": 0.1})
    error = await compensated(engine, saga_id)
    assert "paid" in error.error
    assert WORLD.of(saga_id) == ["reserve", "release"]


async def a_timer_ends(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(patient, saga_id, {"item": "book", "sleep_s": 0.1, "waits": False})
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) is None
    assert WORLD.of(saga_id) == ["reserve", "ship"]


async def a_cancelled_wait_is_compensated(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(patient, saga_id, {"item": "book"})
    await seen(saga_id, "reserve")
    assert await engine.cancel(saga_id)
    error = await compensated(engine, saga_id)
    assert error.cancelled
    assert WORLD.of(saga_id) == ["reserve", "release"]
    assert (await engine.status(saga_id)).cancelled


async def a_cancelled_sleep_is_compensated(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(patient, saga_id, {"item": "book", "sleep_s": 100_000})
    await seen(saga_id, "reserve")
    assert await engine.cancel(saga_id)
    assert (await compensated(engine, saga_id)).cancelled
    assert WORLD.of(saga_id) == ["reserve", "release"]


async def a_step_that_runs_ends_before_its_compensation_begins(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(slow, saga_id, {"item": "book"})
    await seen(saga_id, "charge")
    assert await engine.cancel(saga_id)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await engine.status(saga_id)).cancelled:
                break
            await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)  # what must not come has its chance
    assert WORLD.of(saga_id) == ["reserve", "charge"]
    WORLD.gates.add(f"{saga_id}:charge")
    assert (await compensated(engine, saga_id)).cancelled
    # An engine may see the request at the next step, which is not run but has registered its compensation.
    done = [action for action in WORLD.of(saga_id) if action != "unship"]
    assert done == ["reserve", "charge", "charged", "refund", "release"]


async def a_second_request_to_cancel_changes_nothing(engine: SagaEngine, saga_id: str) -> None:
    WORLD.broken.add(f"{saga_id}:reserve:undo")
    await engine.start(patient, saga_id, {"item": "book"})
    await seen(saga_id, "reserve")
    assert await engine.cancel(saga_id, reason="it rains")
    await until(engine, saga_id, "stuck")
    assert await engine.cancel(saga_id, reason="it snows")
    await seen(saga_id, "release", WORLD.of(saga_id).count("release") + 2)
    WORLD.broken.remove(f"{saga_id}:reserve:undo")
    error = await compensated(engine, saga_id)
    assert error.cancelled
    assert "it rains" in error.error


async def signals_of_one_name_are_taken_in_order_and_each_once(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(listening, saga_id, {})
    for _ in range(2):
        await engine.signal(saga_id, "paid", "first", signal_id="1")
    await engine.signal(saga_id, "paid", "second", signal_id="2")
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == ["first", "second", "no more"]


async def signals_of_two_names_may_have_one_id(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(listening, saga_id, {})
    await engine.signal(saga_id, "other", "first", signal_id="cancel")
    for _ in range(2):
        await engine.signal(saga_id, "paid", "first", signal_id="cancel")
    await engine.signal(saga_id, "paid", "second")
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == ["first", "second", "no more"]
    with pytest.raises(ConfigurationError, match="signal_id"):
        await engine.signal(saga_id, "paid", signal_id="a\n")


async def a_saga_that_has_ended_is_not_cancelled(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(order, saga_id, {"item": "book"})
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert not await engine.cancel(saga_id)
    assert (await engine.status(saga_id)).state == "completed"
    assert WORLD.of(saga_id) == DONE


async def a_result_that_is_not_json_stops_the_saga_until_it_is_repaired(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(not_storable, saga_id, {"item": "book"})
    status = await until(engine, saga_id, "stopped")
    assert status.error is not None
    assert "'odd'" in status.error
    assert "cannot be recorded" in status.error
    with pytest.raises(SagaStopped, match="cannot be recorded"):
        await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert set(WORLD.of(saga_id)) == {"reserve", "unstorable"}
    WORLD.broken.add(f"fixed {saga_id}:odd")
    await retry(engine, saga_id)
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == {"now": "stored"}
    assert WORLD.of(saga_id).count("reserve") == 1


async def a_step_called_twice_stops_the_saga_until_it_is_repaired(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(twice, saga_id, {"item": "book"})
    status = await until(engine, saga_id, "stopped")
    assert status.error is not None
    assert "'reserve' is there twice" in status.error
    assert WORLD.of(saga_id) == ["reserve"]
    WORLD.broken.add(f"fixed {saga_id}")
    await retry(engine, saga_id)
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert WORLD.of(saga_id) == ["reserve", "charge"]


async def a_mistake_in_the_saga_stops_it_and_undoes_nothing(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(mistaken, saga_id, {"item": "book"})
    status = await until(engine, saga_id, "stopped")
    assert status.error is not None
    assert "KeyError" in status.error
    assert WORLD.of(saga_id) == ["reserve"]
    WORLD.broken.add(f"fixed {saga_id}")
    await retry(engine, saga_id)
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == "repaired"
    assert WORLD.of(saga_id) == ["reserve"]


async def waiting_for_a_saga_that_stops_tells_why_and_what_to_do(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(mistaken, saga_id, {"item": "book"})
    for _ in range(2):  # while it stops, and when it has
        with pytest.raises(
            SagaStopped, match=f"'{saga_id}' has stopped: .*KeyError.* saga retry .*{saga_id}"
        ) as raised:
            await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert "KeyError" in raised.value.error
    WORLD.broken.add(f"fixed {saga_id}")
    await retry(engine, saga_id)
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == "repaired"
    assert not await engine.retry(saga_id)


async def a_saga_that_goes_on_is_not_retried(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(slow, saga_id, {"item": "book"})
    await seen(saga_id, "charge")
    with pytest.raises(SagaNotStopped, match=f"saga '{saga_id}' is running"):
        await engine.retry(saga_id)
    WORLD.gates.add(f"{saga_id}:charge")
    await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert WORLD.of(saga_id) == ["reserve", "charge", "charged", "ship"]


async def a_stopped_saga_can_be_cancelled(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(mistaken, saga_id, {"item": "book"})
    await until(engine, saga_id, "stopped")
    assert await engine.cancel(saga_id)
    assert (await compensated(engine, saga_id)).cancelled
    assert WORLD.of(saga_id) == ["reserve", "release"]


async def the_history_has_every_step_and_error(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(order, saga_id, {"item": "book", "fail": {"reserve": 1}, "abort": ["ship"]})
    await compensated(engine, saga_id)
    history = steps_of(await engine.history(saga_id))
    assert short(history) == [
        ("step", "reserve"), ("step", "charge"), ("step", "ship"),
        ("undo", "ship"), ("undo", "charge"), ("undo", "reserve"),
    ]  # fmt: skip
    assert [entry.attempts for entry in history] == [2, 1, 1, 1, 1, 1]
    assert [entry.result for entry in history[:2]] == ["reserved book", {"paid": "book"}]
    assert [entry.error is not None for entry in history] == [False, False, True, False, False, False]
    assert all(entry.ended_at is not None for entry in history)


async def a_client_sends_the_key_of_the_step(engine: SagaEngine, saga_id: str) -> None:
    with ScriptedServer([Reply(503), Reply(201), Reply(201)]) as server:
        await engine.start(calling, saga_id, {"url": f"{server.url}/charges"})
        assert await engine.result(saga_id, timeout_s=PATIENCE_S) == [201, 201]
        sent = {request.headers["idempotency-key"].strip('"') for request in server.requests}
    assert sent == {f"{saga_id}:charge"}


async def values_are_of_the_annotated_types(engine: SagaEngine, saga_id: str) -> None:
    given = Parcel(weight=Decimal("1.50"), sent=date(2026, 11, 17))
    await engine.start(typed, saga_id, given)
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == Parcel(weight=Decimal("3.00"), sent=date(2026, 11, 18))
    untyped: Any = {"weight": "1.50"}
    with pytest.raises(ResultNotSerializable, match="is not"):
        await engine.start(typed, f"{saga_id}-2", untyped)


async def an_id_may_have_any_character_that_keys_may_have(engine: SagaEngine, saga_id: str) -> None:
    odd = f"{saga_id}/a:b?c=d&e#f%20'g'+[h]|*@~"
    await engine.start(order, odd, {"item": "book"})
    assert not await engine.start(order, odd, {"item": "book"})
    await engine.result(odd, timeout_s=PATIENCE_S)
    assert (await engine.status(odd)).state == "completed"
    assert WORLD.keys(odd) == [f"{odd}:reserve", f"{odd}:charge", f"{odd}:ship"]
    with pytest.raises(SagaUnknown):
        await engine.status(saga_id)


async def an_unknown_id_is_told(engine: SagaEngine, saga_id: str) -> None:
    for ask in (
        engine.status(saga_id),
        engine.history(saga_id),
        engine.result(saga_id, timeout_s=PATIENCE_S),
        engine.cancel(saga_id),
        engine.retry(saga_id),
        engine.signal(saga_id, "paid"),
    ):
        with pytest.raises(SagaUnknown, match=saga_id):
            await ask


async def what_cannot_be_started_is_refused(engine: SagaEngine, saga_id: str) -> None:
    with pytest.raises(ResultNotSerializable, match=f"the input of saga '{saga_id}'"):
        await engine.start(order, saga_id, {"item": object()})
    with pytest.raises(ConfigurationError, match="saga id"):
        await engine.start(order, "a b", {"item": "book"})
    with pytest.raises(ResultNotSerializable, match="the data of signal 'paid'"):
        await engine.signal(saga_id, "paid", object())
    with pytest.raises(SagaUnknown):
        await engine.status(saga_id)


async def a_result_can_be_waited_for_in_vain(engine: SagaEngine, saga_id: str) -> None:
    await engine.start(patient, saga_id, {"item": "book"})
    with pytest.raises(TimeoutError):
        await engine.result(saga_id, timeout_s=0.05)
    await engine.signal(saga_id, "paid", 1)
    assert await engine.result(saga_id, timeout_s=PATIENCE_S) == 1


async def the_newest_sagas_are_listed(engine: SagaEngine, saga_id: str) -> None:
    for number in range(3):
        await engine.start(order, f"{saga_id}-{number}", {"item": "book"})
        await engine.result(f"{saga_id}-{number}", timeout_s=PATIENCE_S)
    listed = [each.saga_id for each in await engine.list(state="completed") if each.saga_id.startswith(saga_id)]
    assert listed == [f"{saga_id}-{number}" for number in (2, 1, 0)]


CASES: list[Case] = [
    a_saga_completes_and_each_step_has_its_own_key,
    a_second_start_is_the_same_saga,
    many_starts_at_once_are_one_saga,
    other_input_under_the_same_id_is_refused,
    another_saga_under_the_same_id_is_refused,
    a_failed_step_is_tried_again_under_the_same_key,
    a_step_that_keeps_failing_is_compensated_in_reverse,
    an_abort_is_not_tried_again,
    a_caught_step_goes_another_way,
    a_compensation_that_fails_is_shown_and_tried_until_it_succeeds,
    a_signal_is_waited_for,
    a_signal_that_comes_early_is_kept,
    a_signal_that_does_not_come_is_compensated,
    a_timer_ends,
    a_cancelled_wait_is_compensated,
    a_cancelled_sleep_is_compensated,
    a_step_that_runs_ends_before_its_compensation_begins,
    a_second_request_to_cancel_changes_nothing,
    signals_of_one_name_are_taken_in_order_and_each_once,
    signals_of_two_names_may_have_one_id,
    a_saga_that_has_ended_is_not_cancelled,
    a_result_that_is_not_json_stops_the_saga_until_it_is_repaired,
    a_step_called_twice_stops_the_saga_until_it_is_repaired,
    a_mistake_in_the_saga_stops_it_and_undoes_nothing,
    waiting_for_a_saga_that_stops_tells_why_and_what_to_do,
    a_saga_that_goes_on_is_not_retried,
    a_stopped_saga_can_be_cancelled,
    the_history_has_every_step_and_error,
    a_client_sends_the_key_of_the_step,
    values_are_of_the_annotated_types,
    an_id_may_have_any_character_that_keys_may_have,
    an_unknown_id_is_told,
    what_cannot_be_started_is_refused,
    a_result_can_be_waited_for_in_vain,
    the_newest_sagas_are_listed,
]
