"""The completer's methods of Onefold and AsyncOnefold. They import what they need when they are called."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from onefold._kernel.context_managers import on_tasks, on_threads

if TYPE_CHECKING:
    from onefold._steps.completer import CompletedWorks

_NAME = "once.completing()"


class CompleterSettings(TypedDict, total=False):
    """When a request counts as left (after its lease has ended), after how many attempts it waits for a person, and how
    long one attempt may take."""

    abandoned_after_s: float
    attempts_max: int
    attempt_s: float


class ThreadCompleter:
    """`complete` and `completing` of Onefold."""

    def complete(self, *, limit: int = 100, **settings: Unpack[CompleterSettings]) -> CompletedWorks:
        """Finish requests that were begun in steps and left, by making them again in this process: one round, of
        `limit` requests at most."""
        from onefold._app.completion import completion_of

        once: Any = self
        return completion_of(once, settings).on_thread(once._database, limit)

    def completing(
        self, *, every_s: float = 30.0, **settings: Unpack[CompleterSettings]
    ) -> AbstractContextManager[None]:
        """The same, on a thread, every `every_s`, for as long as the block lasts."""
        from onefold._app.completion import completing_work
        from onefold._worker.embedded import on_a_thread

        once: Any = self
        return on_threads(on_a_thread(completing_work(once, every_s, settings), "completer"), _NAME)


class TaskCompleter:
    """`complete` and `completing` of AsyncOnefold."""

    async def complete(self, *, limit: int = 100, **settings: Unpack[CompleterSettings]) -> CompletedWorks:
        """Finish requests that were begun in steps and left, by making them again in this process: one round, of
        `limit` requests at most."""
        from onefold._app.completion import completion_of

        once: Any = self
        return await completion_of(once, settings).on_loop(once._database, limit)

    def completing(
        self, *, every_s: float = 30.0, **settings: Unpack[CompleterSettings]
    ) -> AbstractAsyncContextManager[None]:
        """The same, as a task, every `every_s`, for as long as the block lasts."""
        from onefold._app.completion import completing_work
        from onefold._worker.embedded import as_task

        once: Any = self
        return on_tasks(as_task(completing_work(once, every_s, settings), "completer"), _NAME)
