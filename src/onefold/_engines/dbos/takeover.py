"""Resumes the sagas of processes that died: DBOS leaves them to a paid service.

Theory of operation. Each process has an executor id of its own, which DBOS writes beside the sagas that it runs, and
holds the lock of that id. Now and then it looks for running sagas of other executors. Where it gets the lock of one,
that process is dead; it looks again, under the lock, resumes what it finds by DBOS's own call, and gives the lock back.
Two that try at once: one gets the lock. A process that is only slow keeps its lock; one that lost it by mistake is
fenced out by DBOS at its next write.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Collection, Sequence
from typing import Final

from dbos import DBOS, WorkflowStatus

from onefold._engines.dbos.executor_locks import ExecutorLocks
from onefold._engines.dbos.saga_context import STOPPED, outside

_log = logging.getLogger("onefold.saga")

#: Sagas that are read, or resumed, at a time.
_PAGE: Final = 1000


def queue_of(workflow: str) -> str:
    """The queue that only processes with the code of this saga take from."""
    return f"onefold-{workflow}"


async def resume(workflows: Sequence[WorkflowStatus]) -> None:
    """Resume sagas from their journals, in any process that has their code."""
    for each in workflows:
        if (each.attributes or {}).get(STOPPED) is not None:
            await DBOS.update_workflow_attributes_async(each.workflow_id, {STOPPED: None}, merge=True)
        await DBOS.resume_workflow_async(each.workflow_id, queue_name=queue_of(each.name))


class Takeover:
    """Looks for sagas of dead processes at intervals."""

    def __init__(self, locks: ExecutorLocks, *, own: str, workflows: Collection[str], every_s: float) -> None:
        self._locks = locks
        self._own = own
        self._workflows = list(workflows)
        self._every_s = every_s
        #: How many running sagas were looked at in this round: a page at a time, whatever there are.
        self._checked = 0

    async def run(self) -> None:
        """Take over until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # of any kind: without this task no saga of a dead process is resumed
                _log.warning(
                    "executor %s could not look for sagas of dead processes (%s); it looks again in %g s",
                    self._own, error, self._every_s,
                )  # fmt: skip
            await asyncio.sleep(self._every_s)

    async def look(self) -> int:
        """Resume the sagas of dead processes; how many."""
        await asyncio.to_thread(self._locks.hold)
        page = await self._running(offset=self._checked)
        self._checked = self._checked + _PAGE if len(page) == _PAGE else 0
        executors = {each.executor_id for each in page if each.executor_id}
        resumed = 0
        for executor in sorted(executors - {self._own}):
            resumed += await self._resume_of(executor)
        return resumed

    async def _resume_of(self, executor: str) -> int:
        if not await asyncio.to_thread(self._locks.take, executor):
            return 0
        try:
            resumed = 0
            # Read again: a peer may have resumed them before it gave the lock back.
            while found := await self._running(executor):
                await outside(functools.partial(resume, found))
                _log.warning(
                    "executor %s resumed %d sagas of executor %s, which is dead: %s",
                    self._own, len(found), executor, ", ".join(each.workflow_id for each in found[:10]),
                )  # fmt: skip
                resumed += len(found)
                if len(found) < _PAGE:
                    break
            return resumed
        finally:
            await asyncio.to_thread(self._locks.give_back, executor)

    async def _running(self, executor: str | None = None, *, offset: int = 0) -> list[WorkflowStatus]:
        """A page of the sagas that run: those of an executor, or of all."""
        return await outside(
            lambda: DBOS.list_workflows_async(
                status="PENDING", name=self._workflows, executor_id=executor, load_input=False, load_output=False,
                limit=_PAGE, offset=offset,
            )
        )  # fmt: skip
