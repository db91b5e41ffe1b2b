"""The order of a work's steps: decides whether each step runs or is answered from its record. A machine without I/O.

Rules. The n-th step that the code calls is the n-th of the record: the same name (or one that it had formerly) and the
same kind. It is answered from the record, and never run again. Behind the last recorded one, steps are new and run.
Code that calls another step than an earlier attempt recorded was changed, or decides by something unrecorded (time,
chance, a row that others write): it is refused before anything runs.

A step that raised is not recorded, and keeps its position. Code that catches the error and goes on (a declined card,
and a phase that notes it) leaves a gap in the record: on resume, the step of the gap runs again, and what was recorded
behind it answers where the code takes the same way. It may be called again at once, as a retry; after another step, its
name is used up.

A call that must not be made twice is marked as started before it is made. Found started and not done, its outcome is
unknown: it is never made again, and an operator must enter its outcome.

One step at a time: the order of two at once would be chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onefold._kernel.arguments import named_settings, show
from onefold._steps.model import RecordedStep, StepKind
from onefold._steps.step_telemetry import StepEnds, ignore
from onefold.errors import ConfigurationError, WorkChanged, WorkMisused

NAME_CHARS_MAX: Final = 100
#: A handler with more is a loop over data: such work is better many works.
STEPS_MAX: Final = 10_000


class _NotGiven:
    def __repr__(self) -> str:
        return "the function's own annotation"


_NOT_GIVEN: Final = _NotGiven()


@named_settings
@dataclass(frozen=True, slots=True)
class StepOptions:
    """A step with more than a name: `work.call(StepOptions("charge", repeatable=False), ...)`.

    `repeatable`: whether a call may be made again, with the same key, where a crash hid its outcome. False parks the
    work for a person instead. `formerly`: names that the step had in earlier releases, the oldest first; its key is
    derived from the oldest, so that it does not change with the name. `returns`: the type that the result is recorded
    as, where the function is not annotated with it.
    """

    name: str
    repeatable: bool = True
    formerly: tuple[str, ...] = ()
    returns: Any = _NOT_GIVEN

    def __post_init__(self) -> None:
        formerly: object = self.formerly
        if isinstance(formerly, str) or not isinstance(formerly, tuple):
            raise ConfigurationError(
                f"formerly={show(formerly)} of step {show(self.name)} is not a tuple of names; write formerly=('pay',)"
            )
        for name in self.names:
            _check_name(name)
        if len(set(self.names)) < len(self.names):
            raise ConfigurationError(f"step {self.name!r} has formerly={self.formerly!r}: a name stands there twice")

    @property
    def names(self) -> tuple[str, ...]:
        """Its present name, then its former ones."""
        return (self.name, *self.formerly)

    @property
    def key_name(self) -> str:
        """The name that its key is derived from, which never changes."""
        return self.formerly[0] if self.formerly else self.name

    @property
    def has_type(self) -> bool:
        """Whether `returns` was given."""
        return self.returns is not _NOT_GIVEN


def step_options(step: str | StepOptions) -> StepOptions:
    """The options of the first argument of `work.phase` and `work.call`."""
    return step if isinstance(step, StepOptions) else StepOptions(step)


@dataclass(frozen=True, slots=True)
class NewStep:
    """It has no record: run it, and record it at this position. `marked`: commit that it was started, before."""

    position: int
    name: str
    marked: bool


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """It is recorded: this is its result."""

    recorded: RecordedStep


@dataclass(frozen=True, slots=True)
class Unknown:
    """It was started, may have happened, and must not be tried again: a person must find out."""

    recorded: RecordedStep


Next: TypeAlias = NewStep | RecordedResult | Unknown


class StepOrder:
    """The steps of one attempt at a work."""

    __slots__ = (
        "_at", "_ended", "_failed", "_finished", "_finishing", "_names", "_position", "_records", "_running", "_what",
    )  # fmt: skip

    def __init__(self, recorded: Iterable[RecordedStep], *, what: str, ended: StepEnds = ignore) -> None:
        """`what` names the work in errors; `ended` is called with the outcome of each step."""
        self._ended = ended
        self._records = {each.position: each for each in recorded}
        self._what = what
        self._names: set[str] = set()
        #: Of the next step.
        self._position = 0
        self._at: NewStep | None = None
        self._running: tuple[StepKind, StepOptions] | None = None
        #: The last step, if it raised: it may be called again.
        self._failed: tuple[StepKind, StepOptions] | None = None
        self._finished = self._finishing = False

    @property
    def is_running(self) -> bool:
        """Whether a step is under way."""
        return self._running is not None or self._finishing

    @property
    def has_begun(self) -> bool:
        """Whether a step was called."""
        return self._position > 0 or self._finished

    def advance(self, kind: StepKind, options: StepOptions) -> Next:
        """What to do with the next step. One that is to be run ends with `done` or `failed`.

        Raises WorkMisused, WorkChanged.
        """
        self._check_free(f"{kind} {options.name!r}")
        position = self._place(kind, options)
        record = self._records.get(position)
        if record is not None:
            self._check_record(kind, options, record)
        self._names.update(options.names)
        self._failed = None
        self._position = position + 1
        if record is not None and record.state != "started":
            self._ended(kind, "recorded")
            return RecordedResult(record)
        if record is not None and not options.repeatable:
            self._failed = (kind, options)
            return Unknown(record)
        name = options.name if record is None else record.name
        self._running = (kind, options)
        self._at = NewStep(position, name, marked=not options.repeatable and kind == "call")
        return self._at

    def mark_started(self) -> None:
        """The mark of the step that is to be run is committed."""
        self._note("started", None)

    def mark_done(self, result: bytes | None) -> None:
        """The step that was to be run is recorded."""
        self._ended(self._note("done", result), "done")
        self._running = self._at = None

    def mark_failed(self) -> None:
        """The step that was to be run raised, and is not recorded."""
        if self._running is not None:
            self._ended(self._running[0], "failed")
        self._failed, self._running, self._at = self._running, None, None

    def finish(self) -> None:
        """Nothing may follow. Raises WorkMisused, WorkChanged."""
        self._check_free("finish")
        self.check_end()
        self._finished = self._finishing = True

    def finish_done(self) -> None:
        """The function of `finish` has returned, and its transaction is committed."""
        self._finishing = False
        self._ended("finish", "done")

    def finish_failed(self) -> None:
        """`finish` raised, and is rolled back: other steps may follow, and another `finish`."""
        self._finished = self._finishing = False
        self._ended("finish", "failed")

    def check_end(self) -> None:
        """Check that the code has called every recorded step. Code that ends earlier has taken another branch than the
        attempt that recorded them: it does not know what has happened. Raises WorkChanged."""
        uncalled = [record for position, record in sorted(self._records.items()) if position >= self._position]
        if uncalled:
            raise WorkChanged(
                f"{self._what} ends without {uncalled[0].kind} {uncalled[0].name!r}, which an earlier attempt has "
                f"recorded. Nothing was stored. {_CAUSES}; or end it with `onefold keys release`"
            )

    def _check_free(self, step: str) -> None:
        if self._running is not None:
            kind, options = self._running
            raise WorkMisused(
                f"{step} of {self._what} was called while {kind} {options.name!r} runs: steps are done one after "
                "the other, so that a resume finds them in the same order. Await each before the next (no "
                "asyncio.gather, no thread), and call none inside of another. Inside of one call, several reads "
                "may be sent at once; each write is a call of its own, with a key of its own"
            )
        if self._finished:
            raise WorkMisused(f"{step} of {self._what} was called after finish, which is the last step")

    def _place(self, kind: StepKind, options: StepOptions) -> int:
        """The position of this step. Raises WorkMisused."""
        if self._failed is not None and self._failed[0] == kind and self._failed[1].name == options.name:
            return self._position - 1
        used = next((name for name in options.names if name in self._names), None)
        if used is not None:
            raise WorkMisused(
                f"{self._what} has used the name {used!r} already: each step has a name of its own, by which its "
                f"record and its key are found. In a loop, number them: f'{used}:{{number}}'"
            )
        if self._position >= STEPS_MAX:
            raise WorkMisused(f"{self._what} has {STEPS_MAX} steps, and no more are allowed: make it several works")
        return self._position

    def _check_record(self, kind: StepKind, options: StepOptions, record: RecordedStep) -> None:
        if record.kind == kind and record.name in options.names:
            return
        raise WorkChanged(
            f"step {record.position + 1} of {self._what} is {kind} {options.name!r}, and an earlier attempt has "
            f"recorded {record.kind} {record.name!r} there. Nothing was run. {_CAUSES}; a step that was renamed says "
            f"so: StepOptions({options.name!r}, formerly=({record.name!r},))"
        )

    def _note(self, state: Any, result: bytes | None) -> StepKind:
        if self._at is None or self._running is None:
            raise WorkMisused(f"{self._what} has no step that runs")
        kind, _ = self._running
        self._records[self._at.position] = RecordedStep(self._at.position, self._at.name, kind, state, result)
        return kind


_CAUSES: Final = (
    "Let works that were begun end before you deploy code that takes other steps (new ones at the end are fine), and "
    "let the code decide by its input and by what its steps returned alone"
)


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f"the name of a step is a text, not {type(name).__name__}: {show(name)}")
    if not 1 <= len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise ConfigurationError(
            f"the name {show(name)} of a step must be 1 to {NAME_CHARS_MAX} printable characters, for example 'charge'"
        )
