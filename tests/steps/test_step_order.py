"""The order of steps: what is recorded is never run again, and code that takes another way is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from onefold._steps.model import RecordedStep, StepKind
from onefold._steps.step_order import (
    NAME_CHARS_MAX,
    NewStep,
    RecordedResult,
    StepOptions,
    StepOrder,
    Unknown,
    step_options,
)
from onefold.errors import ConfigurationError, WorkChanged, WorkMisused


def done(position: int, name: str, kind: StepKind = "phase", result: bytes = b"1") -> RecordedStep:
    return RecordedStep(position, name, kind, "done", result)


def started(position: int, name: str) -> RecordedStep:
    return RecordedStep(position, name, "call", "started", None)


def points(*recorded: RecordedStep) -> StepOrder:
    return StepOrder(recorded, what="POST /rides")


def ask(machine: StepOrder, kind: StepKind, name: str, **options: Any) -> Any:
    return machine.advance(kind, StepOptions(name, **options))


def run(machine: StepOrder, kind: StepKind, name: str) -> None:
    assert isinstance(ask(machine, kind, name), NewStep)
    machine.mark_done(b"null")


# --- rules -----------------------------------------------------------------------------------------------


def test_a_recorded_step_answers_and_the_next_one_runs() -> None:
    machine = points(done(0, "create"))
    assert ask(machine, "phase", "create") == RecordedResult(done(0, "create"))
    assert ask(machine, "call", "charge") == NewStep(1, "charge", marked=False)


@pytest.mark.parametrize(("kind", "name"), [("phase", "other"), ("call", "create")])
def test_another_step_than_the_recorded_one_is_refused_and_both_are_named(kind: StepKind, name: str) -> None:
    machine = points(done(0, "create"))
    with pytest.raises(WorkChanged, match=rf"step 1 of POST /rides is {kind} '{name}'.* recorded phase 'create'"):
        ask(machine, kind, name)


def test_a_refused_step_leaves_the_machine_as_it_was() -> None:
    machine = points(done(0, "create"))
    with pytest.raises(WorkChanged):
        ask(machine, "phase", "other")
    assert isinstance(ask(machine, "phase", "create"), RecordedResult)
    assert isinstance(ask(machine, "phase", "other"), NewStep)


def test_a_renamed_step_finds_its_record_and_keeps_its_key() -> None:
    renamed = StepOptions("charge", formerly=("pay", "bill"))
    for name in ("pay", "bill", "charge"):
        assert isinstance(points(done(0, name, "call")).advance("call", renamed), RecordedResult)
    assert renamed.key_name == "pay"
    assert StepOptions("charge").key_name == "charge"


def test_a_name_that_another_step_had_formerly_cannot_be_used_for_a_second_one() -> None:
    machine = points()
    ask(machine, "call", "charge", formerly=("pay",))
    machine.mark_done(b"1")
    with pytest.raises(WorkMisused, match="has used the name 'pay' already"):
        ask(machine, "call", "pay")


def test_a_name_is_used_once() -> None:
    machine = points(done(0, "create"))
    ask(machine, "phase", "create")
    with pytest.raises(WorkMisused, match=r"number them: f'create:\{number\}'"):
        ask(machine, "call", "create")


def test_two_steps_at_once_are_refused() -> None:
    machine = points()
    ask(machine, "call", "charge")
    with pytest.raises(WorkMisused, match="phase 'note' of POST /rides was called while call 'charge' runs"):
        ask(machine, "phase", "note")
    with pytest.raises(WorkMisused, match="finish of POST /rides was called while call 'charge' runs"):
        machine.finish()
    machine.mark_done(b"1")
    run(machine, "phase", "note")


def test_nothing_follows_finish() -> None:
    machine = points()
    machine.finish()
    with pytest.raises(WorkMisused, match="after finish"):
        ask(machine, "phase", "late")
    with pytest.raises(WorkMisused, match="after finish"):
        machine.finish()


@pytest.mark.parametrize("end", [StepOrder.finish, StepOrder.check_end])
def test_code_that_ends_before_all_that_is_recorded_was_asked_for_is_refused(end: Any) -> None:
    machine = points(done(0, "create"), done(1, "charge", "call"))
    ask(machine, "phase", "create")
    with pytest.raises(WorkChanged, match="ends without call 'charge'"):
        end(machine)
    ask(machine, "call", "charge")
    end(machine)


def test_a_call_that_must_not_be_made_twice_is_marked_and_never_made_again() -> None:
    machine = points()
    assert ask(machine, "call", "charge", repeatable=False) == NewStep(0, "charge", marked=True)
    machine.mark_started()
    machine.mark_failed()
    assert ask(machine, "call", "charge", repeatable=False) == Unknown(started(0, "charge"))
    assert ask(points(started(0, "charge")), "call", "charge", repeatable=False) == Unknown(started(0, "charge"))


def test_a_started_call_that_has_become_repeatable_is_made_again_under_its_recorded_name() -> None:
    machine = points(started(0, "pay"))
    assert ask(machine, "call", "charge", formerly=("pay",)) == NewStep(0, "pay", marked=False)


def test_a_step_that_raised_may_be_asked_for_again_at_once_and_not_later() -> None:
    machine = points()
    assert ask(machine, "call", "charge") == NewStep(0, "charge", marked=False)
    machine.mark_failed()
    assert ask(machine, "call", "charge") == NewStep(0, "charge", marked=False)
    machine.mark_failed()
    assert ask(machine, "phase", "note") == NewStep(1, "note", marked=False)
    machine.mark_done(b"1")
    with pytest.raises(WorkMisused, match="has used the name 'charge'"):
        ask(machine, "call", "charge")


def test_what_was_recorded_after_a_step_that_raised_answers_where_it_raises_again() -> None:
    machine = points(done(0, "create"), done(2, "declined"))
    ask(machine, "phase", "create")
    assert ask(machine, "call", "charge") == NewStep(1, "charge", marked=False)
    machine.mark_failed()
    assert isinstance(ask(machine, "phase", "declined"), RecordedResult)


def test_a_step_that_succeeds_where_it_had_raised_does_not_go_another_way_in_silence() -> None:
    machine = points(done(0, "create"), done(2, "declined"))
    ask(machine, "phase", "create")
    ask(machine, "call", "charge")
    machine.mark_done(b"1")
    with pytest.raises(WorkChanged, match="recorded phase 'declined'"):
        ask(machine, "phase", "ship")


@pytest.mark.parametrize("name", ["", "a" * (NAME_CHARS_MAX + 1), "a\nb", "\x00", 7, None])
def test_a_name_is_a_short_printable_text(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="of a step"):
        step_options(name)


@pytest.mark.parametrize("formerly", ["pay", ["pay"], ("charge",), ("pay", "pay"), ("",)])
def test_former_names_are_a_tuple_of_other_names(formerly: Any) -> None:
    with pytest.raises(ConfigurationError):
        StepOptions("charge", formerly=formerly)


# --- properties ------------------------------------------------------------------------------------------


class Crash(Exception):
    """The process dies."""


class Declined(Exception):
    """What a step raises each time, and the handler goes on from."""


@dataclass(frozen=True)
class Op:
    kind: StepKind
    name: str
    repeatable: bool = True
    declines: bool = False


@dataclass
class World:
    """What outlives the process: the record, and how often each step had its effect."""

    make: type[StepOrder] = StepOrder
    records: dict[int, RecordedStep] = field(default_factory=dict)
    effects: dict[str, int] = field(default_factory=dict)
    repeated: list[str] = field(default_factory=list)
    parked: bool = False

    def attempt(self, program: list[Op], crashes: Iterator[bool]) -> list[bytes | None] | None:
        """One process's attempt; None: it died, or found an unknown outcome."""
        machine = self.make(self.records.values(), what="work")
        answers: list[bytes | None] = []
        try:
            for op in program:
                answers.append(self.step(machine, op, crashes))
                if op.declines:
                    answers.append(self.step(machine, Op("phase", f"undo {op.name}"), crashes))
            machine.finish()
        except Crash:
            return None
        return answers

    def step(self, machine: StepOrder, op: Op, crashes: Iterator[bool]) -> bytes | None:
        following = machine.advance(op.kind, StepOptions(op.name, repeatable=op.repeatable))
        if isinstance(following, RecordedResult):
            assert (following.recorded.name, following.recorded.kind) == (op.name, op.kind)
            return following.recorded.result
        if isinstance(following, Unknown):
            self.parked = True
            raise Crash
        if following.marked:
            self.records[following.position] = RecordedStep(
                following.position, following.name, op.kind, "started", None
            )
            machine.mark_started()
        self.crash(crashes)
        if any(each.name == op.name and each.state == "done" for each in self.records.values()):
            self.repeated.append(op.name)
        if op.kind == "call" or not op.declines:
            self.effects[op.name] = self.effects.get(op.name, 0) + 1
        if op.declines:
            machine.mark_failed()
            return None
        self.crash(crashes)
        result = op.name.encode()
        self.records[following.position] = RecordedStep(following.position, following.name, op.kind, "done", result)
        self.crash(crashes)
        machine.mark_done(result)
        return result

    def crash(self, crashes: Iterator[bool]) -> None:
        if next(crashes, False):
            raise Crash


ops = st.builds(Op, st.sampled_from(["phase", "call"]), st.just(""), st.booleans(), st.booleans())
programs = st.lists(ops, max_size=6).map(
    lambda found: [Op(op.kind, f"step {number}", op.repeatable, op.declines) for number, op in enumerate(found)]
)
#: At which place each attempt dies.
crash_plans = st.lists(st.integers(0, 15).map(lambda place: [False] * place + [True]), max_size=6)


def check_resumes(program: list[Op], plans: list[list[bool]], make: type[StepOrder] = StepOrder) -> None:
    """Attempts that die, and then one that does not: what has to hold at its end."""
    world = World(make)
    expected = World().attempt(program, iter(()))
    answers = None
    for plan in [*plans, [], []]:
        answers = world.attempt(program, iter(plan))
        if answers is not None or world.parked:
            break
    assert not world.repeated
    for op in program:
        if not op.repeatable and op.kind == "call":
            assert world.effects.get(op.name, 0) <= 1
    if not world.parked:
        assert answers == expected


@settings(max_examples=100, deadline=None)
@given(programs, crash_plans)
def test_whatever_dies_a_resume_runs_nothing_that_is_recorded_and_ends_like_an_undisturbed_run(
    program: list[Op], plans: list[list[bool]]
) -> None:
    check_resumes(program, plans)


class ForgetsTheLast(StepOrder):
    """Planted: does not look at the last record."""

    def __init__(self, recorded: Any, *, what: str) -> None:
        super().__init__(list(recorded)[:-1], what=what)


class IgnoresTheMark(StepOrder):
    """Planted: makes a call again that was started."""

    def advance(self, kind: StepKind, options: StepOptions) -> Any:
        return super().advance(kind, StepOptions(options.name))


class ClosesGaps(StepOrder):
    """Planted: numbers records one after the other, as if no step had raised."""

    def __init__(self, recorded: Any, *, what: str) -> None:
        super().__init__([each._replace(position=n) for n, each in enumerate(recorded)], what=what)


@pytest.mark.parametrize("planted", [ForgetsTheLast, IgnoresTheMark, ClosesGaps])
def test_the_property_finds_a_planted_bug(planted: type[StepOrder]) -> None:
    @settings(max_examples=400, deadline=None, database=None, phases=[Phase.generate])
    @given(programs, crash_plans)
    def check(program: list[Op], plans: list[list[bool]]) -> None:
        check_resumes(program, plans, planted)

    with pytest.raises((AssertionError, WorkChanged, BaseExceptionGroup)):
        check()


@settings(max_examples=100, deadline=None)
@given(programs, programs, st.permutations(range(6)), crash_plans)
def test_code_that_was_changed_gets_only_answers_of_its_own_steps(
    before: list[Op], after: list[Op], order: list[int], plans: list[list[bool]]
) -> None:
    """Whatever was deployed between: each answer has the name and kind that was asked for (`World.step` looks)."""
    world = World()
    for plan in [*plans, [True] * 3]:
        world.attempt(before, iter(plan))
    changed = [after[place] for place in order if place < len(after)]
    try:
        answers = world.attempt(changed, iter(()))
    except WorkChanged:
        return
    if answers is not None:
        recorded = [each.name for each in world.records.values()]
        assert len(set(recorded)) == len(recorded)
