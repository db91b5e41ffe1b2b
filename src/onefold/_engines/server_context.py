"""One running saga on an engine with a server: the common part of their `EngineContext`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import ClassVar, Final

from onefold._engines.journalled_attempts import Attempt, run_attempts
from onefold._saga.saga_errors import EngineFault, describe_stop
from onefold._saga.saga_values import Json
from onefold._saga.step_call import StepCall

#: The names of timers in the journal: that of `s.sleep`, and those that belong to something else.
SLEEP: Final = "sleep"
PAUSE: Final = "pause"
TIMEOUT: Final = "timeout"


class ServerContext(ABC):
    """A saga's steps are attempts in the server's journal, and its pauses the server's timers."""

    #: Where the journal is.
    server: ClassVar[str]

    def __init__(self) -> None:
        self._shielded = False

    async def run_step(self, call: StepCall) -> Json:
        return await run_attempts(call, self._journal, partial(self._sleep, name=PAUSE))

    async def run_tx(self, call: StepCall) -> Json:
        raise EngineFault(
            f"{describe_stop(call.saga_id)}s.tx({call.step!r}) needs an engine that shares your database, as DBOS "
            f"does, and the journal of {self.server} is in its server. Make it s.step(...), whose key() has its effect "
            "happen once"
        )

    async def sleep(self, seconds: float) -> None:
        await self._sleep(seconds, name=SLEEP)

    def shield(self) -> None:
        self._shielded = True

    @abstractmethod
    async def _journal(self, name: str, attempt: Attempt) -> Json:
        """The record under this name; without one, run the attempt and record it."""

    @abstractmethod
    async def _sleep(self, seconds: float, *, name: str) -> None:
        """A timer of this name. CancelRequested, unless shielded."""
