"""The flow of a saga, whatever its engine: keys, order, what compensates and what stops. Crashed after every record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from onefold._saga.definition import Start, begin, fingerprint
from onefold._saga.execution import run_saga
from onefold._saga.saga_names import check_name, check_saga_id, step_key, undo_key
from onefold._saga.step_call import StepCall
from onefold.errors import ConfigurationError
from onefold.sagas import (
    Abort,
    EngineFault,
    NotInAStep,
    Saga,
    StepFailed,
    forward_key,
    key,
    saga,
)
from tests.saga.conformance.sagas import QUICK, RETRY, SAGAS, WORLD, order
from tests.saga.memory_engine import Kept, MemoryContext, MemoryEngine, kept_of


@pytest.fixture
async def engine() -> AsyncIterator[MemoryEngine]:
    made = MemoryEngine(SAGAS)
    yield made
    await made.close()


class Crash(BaseException):
    """The process dies."""


class CrashingContext(MemoryContext):
    """Dies at its n-th step: before it is run, or after, when nothing is recorded yet."""

    def __init__(self, kept: Kept, at: int, *, after: bool) -> None:
        super().__init__(kept)
        self._left, self._after = at, after

    async def run_step(self, call: StepCall) -> Any:
        if call.journal_name not in [name for name, _, _ in self._kept.journal]:
            self._left -= 1
            if self._left == 0:
                if self._after:
                    await call.attempt(last=True)
                raise Crash
        return await super().run_step(call)


async def crash_and_run(saga_id: str, given: dict[str, Any], at: int, *, after: bool) -> Kept:
    """Run it until it dies there, and again to its end. Its journal is all that stays."""
    kept = kept_of(order, saga_id, given)
    try:
        kept.outcome = await run_saga(order, kept.start, CrashingContext(kept, at, after=after))
    except Crash:
        kept.outcome = await run_saga(order, kept.start, MemoryContext(kept))
        kept.runs = 2
    return kept


def net(saga_id: str) -> dict[str, int]:
    """How often each effect stands: effects with one key count once, as they do for a server that knows keys."""
    done, pairs = set(WORLD.keys(saga_id)), ("reserve", "charge", "ship")
    return {step: (step_key(saga_id, step) in done) - (undo_key(saga_id, step) in done) for step in pairs}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("given", [{"item": "book"}, {"item": "book", "abort": ["ship"]}], ids=["completes", "aborts"])
async def test_a_crash_at_every_step_ends_as_without_it(given: dict[str, Any], after: bool) -> None:
    crashes = 0
    for at in range(1, 100):
        saga_id = f"crash-{at}-{after}-{len(given)}"
        kept = await crash_and_run(saga_id, given, at, after=after)
        if "abort" in given:
            assert kept.outcome["outcome"] == "compensated"
            assert set(net(saga_id).values()) == {0}
        else:
            assert kept.outcome["outcome"] == "completed"
            assert set(net(saga_id).values()) == {1}
        if kept.runs != 2:
            break
        crashes += 1
    assert crashes == (6 if "abort" in given else 3)


async def test_the_control_that_counts_executions_finds_the_step_that_ran_twice() -> None:
    await crash_and_run("control-1", {"item": "book"}, 2, after=True)
    assert WORLD.of("control-1").count("charge") == 2


async def test_an_undo_is_registered_before_its_step_is_run() -> None:
    """It dies in a step that has applied, is cancelled, and the step is undone although it has no record."""
    kept = kept_of(order, "early-undo", {"item": "book"})
    with pytest.raises(Crash):
        await run_saga(order, kept.start, CrashingContext(kept, 2, after=True))
    kept.cancelled = "given up"
    assert (await run_saga(order, kept.start, MemoryContext(kept)))["cancelled"]
    assert WORLD.of("early-undo") == ["reserve", "charge", "refund", "release"]


async def test_a_definition_that_changed_stops_and_undoes_nothing() -> None:
    kept = kept_of(order, "changed", {"item": "book"})
    with pytest.raises(Crash):
        await run_saga(order, kept.start, CrashingContext(kept, 3, after=False))

    async def added(o: dict[str, Any]) -> None:
        WORLD.act("added", o)

    @saga("conformance-order")
    async def changed(s: Saga, o: dict[str, Any]) -> None:
        try:
            await s.step("added", added, o)
        except Exception:
            WORLD.act("caught", o)
        await s.step("reserve", added, o, undo=added)

    with pytest.raises(EngineFault, match="'reserve' is in the journal, and not 'added'"):
        await run_saga(changed, kept.start, MemoryContext(kept))
    assert WORLD.of("changed") == ["reserve", "charge"]
    assert (await run_saga(order, kept.start, MemoryContext(kept)))["outcome"] == "completed"


async def test_a_fault_that_the_saga_catches_still_stops_it() -> None:
    @saga("stubborn")
    async def stubborn(s: Saga, o: dict[str, Any]) -> str:
        for _ in range(2):
            try:
                await s.step("same", lambda: 1)
            except BaseException:
                continue
        await s.step("other", lambda: WORLD.act("other", o))
        return "went on"

    kept = kept_of(stubborn, "stubborn", {})
    with pytest.raises(EngineFault, match="'same' is there twice"):
        await run_saga(stubborn, kept.start, MemoryContext(kept))
    assert WORLD.of("stubborn") == []


async def test_two_steps_at_once_stop_the_saga() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)

    @saga("parallel")
    async def parallel(s: Saga, o: dict[str, Any]) -> None:
        await asyncio.gather(s.step("a", wait), s.step("b", wait))

    kept = kept_of(parallel, "parallel", {})
    with pytest.raises(EngineFault, match="one after the other"):
        await run_saga(parallel, kept.start, MemoryContext(kept))


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (lambda s: s.step("a:b", print), "step name 'a:b' must be"),
        (lambda s: s.step("", print), "step name '' must be"),
        (lambda s: s.step("x" * 101, print), "1 to 100 visible"),
        (lambda s: s.step("undo", print), "not 'undo'"),
        (lambda s: s.step(print, "a"), "s.step(print, 'a', ...) has its arguments swapped: write s.step('a', print"),
        (lambda s: s.step("a", None), "the function of step 'a' is None"),
        (lambda s: s.step("a", print, undo=1), "undo of step 'a' is 1"),
        (lambda s: s.step("a", print, retry=3), "retry=3 of step 'a'"),
        (lambda s: s.step("a", print, object()), "argument 1 of step 'a' cannot be recorded"),
        (lambda s: s.step("a", lambda: None, 1), "step 'a' gives <lambda>() what it does not take"),
        (lambda s: s.step("a", print, 1, undo=lambda: None), "step 'a' gives its undo <lambda>() what"),
        (lambda s: s.tx("a", print, undo=lambda: None), "step 'a' gives its undo <lambda>() what"),
        (lambda s: s.tx("a", print), "needs an engine that shares your database"),
        (lambda s: s.sleep(-1), "seconds"),
        (lambda s: s.wait("a b"), "signal 'a b' must be"),
        (lambda s: s.wait("a", timeout_s=-1), "timeout_s"),
    ],
)
async def test_what_a_saga_does_wrong_is_told(run: Callable[[Saga], Any], told: str) -> None:
    @saga("wrong")
    async def wrong(s: Saga, _: None) -> None:
        await run(s)

    kept = kept_of(wrong, "wrong", None)
    with pytest.raises(EngineFault, match="saga 'wrong' stops, and nothing is undone") as raised:
        await run_saga(wrong, kept.start, MemoryContext(kept))
    assert told in str(raised.value)


def test_a_definition_is_checked_where_it_is_written() -> None:
    with pytest.raises(ConfigurationError, match=r"saga 'a': .*<lambda>\(s, o\) must be an `async def`"):
        saga("a")(lambda s, o: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match=r"saga 'a': str .*must be an `async def`"):
        saga("a")("b")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="saga 'b': saga 'conformance-order' has an @saga"):
        saga("b")(order)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must take the saga and its input"):

        @saga("a")  # type: ignore[arg-type]
        async def needs_more(s: Saga, o: int, more: int) -> None: ...

    with pytest.raises(ConfigurationError, match="saga name 'a:b'"):
        saga("a:b")
    with pytest.raises(ConfigurationError, match=r"saga name 'a@b' must be without '@'.*NAME@VERSION"):
        saga("a@b")
    with pytest.raises(ConfigurationError, match="saga version ''"):
        saga("a", version="")
    with pytest.raises(ConfigurationError, match="must be a RetryPolicy"):
        saga("a", undo_retry=3)  # type: ignore[arg-type]


async def charge_card(s: Saga, o: dict[str, Any]) -> None: ...


async def swapped(o: dict[str, Any], s: Saga) -> None: ...


async def unnamed(s: Saga) -> None: ...


wrongly: Any = saga


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: wrongly(charge_card), r'@saga above charge_card needs .* name .*: write @saga\("charge_card"\)'),
        (lambda: wrongly(), r"saga\(...\) is missing name"),
        (lambda: wrongly("a", "2"), r"write its name before it: version="),
        (lambda: wrongly("a", retries=2), "retries"),
        (lambda: wrongly("a")(swapped), r"saga 'a': swapped\(.* takes the saga second: .* swapped\(s: Saga, o"),
        (lambda: wrongly("a")(unnamed), r"saga 'a': unnamed\(s: 'Saga'\).* must take the saga and its input"),
    ],
)
def test_a_wrong_definition_is_told_by_its_name_and_with_the_way_out(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as raised:
        wrong()
    assert " at 0x" not in str(raised.value)


async def test_swapped_arguments_are_told_by_what_goes_where(engine: MemoryEngine) -> None:
    call: Any = engine.start
    with pytest.raises(ConfigurationError, match=r"start\('order-42', .* write engine.start\(order, 'order-42', "):
        await call("order-42", order, {})
    with pytest.raises(ConfigurationError, match=r"saga id \{.*as 'order-42' is"):
        await call(order, {"item": "book"}, "order-42")
    with pytest.raises(ConfigurationError, match=r"engine.start\(charge_card, ...\): put @saga\(\.\.\.\) above"):
        await call(charge_card, "order-42", {})


def test_an_engine_refuses_sagas_that_it_could_not_tell_apart() -> None:
    async def other(s: Saga, o: object) -> None: ...

    with pytest.raises(ConfigurationError, match="two sagas are called 'conformance-order'"):
        MemoryEngine([order, saga("conformance-order")(other)])
    MemoryEngine([order, saga("conformance-order", version="2")(other)])
    with pytest.raises(ConfigurationError, match="is empty"):
        MemoryEngine([])
    with pytest.raises(ConfigurationError, match="is not a saga"):
        MemoryEngine([other])  # type: ignore[list-item]


async def test_a_saga_that_the_engine_does_not_run_is_not_started(engine: MemoryEngine) -> None:
    @saga("conformance-order", version="2")
    async def newer(s: Saga, o: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="in version '2' is not run by this engine"):
        await engine.start(newer, "newer", {})
    with pytest.raises(ConfigurationError, match="put @saga"):
        await engine.start(print, "newer", {})  # type: ignore[arg-type]


def test_keys_are_of_one_step_only() -> None:
    """Ids may have colons: a key still reads in one way from its end."""
    ids, steps = ["a", "a:b", "a:undo", "a:b:undo", "b"], ["a", "b", "undoing"]
    keys = [make(saga_id, step) for saga_id in ids for step in steps for make in (step_key, undo_key)]
    assert len(set(keys)) == len(keys)
    with pytest.raises(ConfigurationError):
        check_name("undo", "step name")
    for bad in ("", ".", "..", "a b", "a,b", 'a"', "ä", "x" * 129, None, 42):
        with pytest.raises(ConfigurationError, match="saga id"):
            check_saga_id(bad)


def test_a_fingerprint_is_of_name_version_and_input() -> None:
    prints = [
        fingerprint(name, version, data)
        for name in ("a", "b")
        for version in ("1", "2")
        for data in (None, {}, {"a": 1}, {"a": "1"}, {"a": 1, "b": 2})
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint("a", "1", {"a": 1, "b": 2}) == fingerprint("a", "1", {"b": 2, "a": 1})
    start = begin(order, "x", {"item": ["a", 1]})
    assert Start.from_json(start.to_json()) == start


def test_keys_are_for_steps() -> None:
    for ask in (key, forward_key):
        with pytest.raises(NotInAStep, match=r"s\.step"):
            ask()


async def test_a_compensation_that_never_ends_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    broken = iter([True] * 7)

    def undo() -> None:
        if next(broken, False):
            raise ConnectionError("away")

    def fail() -> None:
        raise StepFailed("x", "y", aborted=False)

    @saga("unlucky", undo_retry=RETRY, undo_pause=QUICK)
    async def unlucky(s: Saga, o: None) -> None:
        await s.step("a", fail, undo=undo, retry=RETRY)

    kept = kept_of(unlucky, "unlucky", None)
    assert (await run_saga(unlucky, kept.start, MemoryContext(kept)))["outcome"] == "compensated"
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2  # two rounds of three attempts
    assert all(text.startswith("saga unlucky is stuck: the compensation of step a failed in round") for text in errors)


async def test_a_compensation_is_done_whatever_it_returns(caplog: pytest.LogCaptureFixture) -> None:
    """An answer of an SDK, say: its effect has happened, and what it gave is asked for by nothing."""
    undone: list[str] = []

    def undo() -> object:
        undone.append(key())
        return object()

    def fail() -> None:
        raise Abort("no")

    @saga("answers")
    async def answers(s: Saga, o: None) -> None:
        await s.step("a", print, undo=undo)
        await s.step("b", fail, undo=undo)

    kept = kept_of(answers, "answers", None)
    assert (await run_saga(answers, kept.start, MemoryContext(kept)))["outcome"] == "compensated"
    assert undone == ["answers:b:undo", "answers:a:undo"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 2
    assert "saga answers: step b is undone, and what its compensation returned is not kept" in told[0]


@dataclass
class Seen:
    """What a function on a thread has seen of its step."""

    key: str = ""


async def test_a_plain_function_runs_on_a_thread_and_has_its_key() -> None:
    import threading

    seen = Seen()

    def note() -> str:
        seen.key = key()
        return threading.current_thread().name

    @saga("threads")
    async def threads(s: Saga, o: None) -> Any:
        return await s.step("a", note)

    kept = kept_of(threads, "threads", None)
    outcome = await run_saga(threads, kept.start, MemoryContext(kept))
    assert outcome["result"] != threading.current_thread().name
    assert seen.key == "threads:a"
