"""A call whose attempts are made outside of the retry loop: by the block of a `for` loop, by tenacity or by stamina.

The loop is the same flow. It is advanced up to its next wait or its next attempt, and its caller does either.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from onefold._client.function_calls import FunctionCall, FunctionCalls
from onefold._client.retry_loop import Raised
from onefold._kernel.deadlines import shorten
from onefold._kernel.effects import Effect, Flow, Now, Sleep
from onefold._policy.attempts import Attempts
from onefold.errors import ProgrammerError


class ManualAttempts:
    """`begin`, then the attempt, then `end`, which says whether and when to begin again."""

    __slots__ = ("_attempts", "_began", "_calls", "_flow")

    def __init__(self, calls: FunctionCalls) -> None:
        self._began = now = monotonic()
        self._calls = calls
        self._attempts = Attempts(calls.host, shorten(now + calls.host.policy.deadline_s))
        #: The retry loop, once the first attempt has not simply succeeded.
        self._flow: Flow[Any] | None = None

    @property
    def attempts_made(self) -> int:
        """With the one that was begun last."""
        return self._attempts.made

    def begin(self) -> None:
        """An attempt begins now. Raises CallNotMade."""
        if self._flow is not None:
            self._advance(None)
        elif (stop := self._attempts.begin(self._began)) is not None:
            self._flow = self._loop().refuse(stop)
            self._advance(None)

    def admit(self) -> bool:
        """Whether the first attempt may begin, and then it does; nothing is reported of a refusal."""
        return self._attempts.begin(self._began) is None

    def end(self, error: Exception | None) -> float | None:
        """The attempt has ended so: how long to wait before the next one, or None: there is none."""
        calls = self._calls
        if self._flow is None and error is None and calls.plain and not calls.host.troubled:
            self._attempts.succeed(monotonic())
            return None
        ended = None if error is None else Raised(error)
        if self._flow is None:
            self._flow, ended = self._loop().finish(ended), None
        step = self._advance(ended)
        wait_s: float | None = step.argument if isinstance(step, Sleep) else None
        return wait_s

    def forgo_retry(self) -> None:
        """The attempt that follows the wait of `end` is made elsewhere, as one of another call."""
        self._attempts.forgo_retry()
        self.close()

    def close(self) -> None:
        """No attempt follows. One that was begun and not ended says nothing about the host."""
        self._attempts.release_without_verdict()
        if self._flow is not None:
            self._flow.close()

    def _loop(self) -> FunctionCall:
        return FunctionCall(self._calls, self._attempts, self._began, _not_made_here)

    def _advance(self, answer: Any) -> Effect[Any] | None:
        """The wait or the attempt that comes next; None: the call is over."""
        assert self._flow is not None
        while True:
            try:
                effect: Effect[Any] = self._flow.send(answer)
            except StopIteration:
                return None
            if not isinstance(effect, Now):
                return effect
            answer = monotonic()


def _not_made_here(left_s: float) -> Any:
    raise ProgrammerError("the attempts of a stepped call are made by its caller")
