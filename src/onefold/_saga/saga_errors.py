"""The errors that end a saga, and those that stop it.

Three kinds, and they never mix. A step that failed (`StepFailed`) or a saga that gives up (`Abort`) is compensated. A
request to cancel (`CancelRequested`) is compensated, and passes through `except Exception`. Everything else stops the
saga where it is (`EngineFault`): nothing is undone, because code that does not fit its journal does not know which
steps have run.
"""

from __future__ import annotations

from typing import ClassVar

from onefold.errors import CallerError, OnefoldError, ProgrammerError


class Abort(OnefoldError):
    """Raised by a step: do not try it again, compensate. Raised by the saga itself: compensate."""


class SignalTimedOut(Abort):
    """No such signal came in time. Unless the saga catches it, it is compensated."""


class StepFailed(OnefoldError):
    """A `step` has used up its attempts, or `aborted`. A saga may catch it and go another way; else it is
    compensated."""

    def __init__(self, step: str, error: str, *, aborted: bool) -> None:
        super().__init__(f"step {step!r} {'aborted' if aborted else 'failed'}: {error}")
        self.step = step
        self.error = error
        self.aborted = aborted


class Compensated(OnefoldError):
    """The saga did not complete: what its steps had done is undone. `cancelled`: by a request."""

    def __init__(self, saga_id: str, error: str, *, cancelled: bool) -> None:
        super().__init__(f"saga {saga_id!r} was compensated: {error}")
        self.saga_id = saga_id
        self.error = error
        self.cancelled = cancelled


class SagaStopped(OnefoldError):
    """The saga has no end until a person acts: its code or its engine is at fault, and nothing was undone."""

    def __init__(self, saga_id: str, error: str) -> None:
        super().__init__(
            f"saga {saga_id!r} has stopped: {error.removeprefix(describe_stop(saga_id))}. `onefold saga show "
            f"MODULE:engine {saga_id}` has its history; with repaired code `onefold saga retry MODULE:engine "
            f"{saga_id}`, or engine.retry(...), has it go on where it stopped, and `cancel` has it compensate"
        )
        self.saga_id = saga_id
        self.error = error


def describe_stop(saga_id: str) -> str:
    """The beginning of an EngineFault's text."""
    return f"saga {saga_id!r} stops, and nothing is undone: "


class SagaNotStopped(CallerError):
    """Only a saga that has stopped is retried: another goes on by itself, and its step would run a second time."""

    status: ClassVar[int] = 409
    slug: ClassVar[str] = "saga-not-stopped"
    title: ClassVar[str] = "The saga has not stopped"


class SagaMismatch(CallerError):
    """The id already names another saga: another name, another version or other input. Nothing was started."""

    status: ClassVar[int] = 422
    slug: ClassVar[str] = "saga-mismatch"
    title: ClassVar[str] = "The saga's id was used for another saga"


class SagaUnknown(CallerError):
    """There is no saga with this id."""

    status: ClassVar[int] = 404
    slug: ClassVar[str] = "saga-unknown"
    title: ClassVar[str] = "There is no saga with this id"


class NotInAStep(ProgrammerError):
    """key() or forward_key() was called outside of a step."""


class EngineFault(BaseException):
    """The saga stops where it is: its definition has changed, a result cannot be stored, its code is wrong, or the
    engine is at fault. Not an Exception: a saga that catches those must not take it for a failed step. Nothing is
    undone; repaired code goes on from the same place."""


class CancelRequested(BaseException):
    """A cancellation was requested: the saga is compensated. Not an Exception, for the same reason."""
