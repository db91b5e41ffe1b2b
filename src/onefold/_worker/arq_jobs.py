"""arq: a job that runs once, in one transaction with its ledger row.

    @handled_once(once, "fulfilment")
    async def ship(ctx: dict[str, Any], order: str, tx: Transaction) -> None: ...

    class WorkerSettings:
        functions = [func(ship, max_tries=15)]

arq takes a job off its queue after the job has run, and also when it fails, for good, unless it raises `Retry`. So a
failure is raised as that here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from onefold._kernel.extras import missing_extra

try:
    from arq.worker import Retry
except ModuleNotFoundError as error:
    raise missing_extra(error, "arq") from None

from onefold._policy.backoff import Backoff
from onefold._policy.ranges import require
from onefold._worker.ledger_reaper import RETENTION_S
from onefold._worker.task_queues import SupportsHandling, in_transaction, wrap_as

#: Marks the ctx of a job whose id has been used. arq makes a new one each time it runs a job.
_USED = "onefold_taken"

_log = logging.getLogger("onefold.consumer")


def handled_once(
    once: SupportsHandling,
    consumer: str,
    *,
    lease_s: float = 60.0,
    retry_s: float = 1.0,
    retention_s: float = RETENTION_S,
    id_of: Callable[[dict[str, Any]], str] | None = None,
) -> Callable[[Callable[..., Awaitable[Any]]], Any]:
    """The handler's parameter `tx` gets the job's transaction. `consumer` names it in the ledger, which remembers for
    `retention_s`. A job is known by its id and the time it was enqueued, because arq's ids may be used again, or by
    what `id_of` says of its `ctx`. What fails, or takes longer than `lease_s`, is logged and run again after `retry_s`,
    twice that the next time, and so on, as often as arq's `max_tries`. Keep arq's `job_timeout` above `lease_s`."""
    require(f"consumer {consumer!r}: retry_s", retry_s, most=3600)
    backoff = Backoff(transient_base_s=retry_s, cap_s=max(600.0, retry_s))

    def identify(arguments: Sequence[Any], named: dict[str, Any]) -> str | None:
        ctx = arguments[0] if arguments else {}
        if "job_id" not in ctx or _USED in ctx:  # a second call in one job would pass for a repetition
            return None
        ctx[_USED] = True
        return f"{ctx['job_id']} {ctx['enqueue_time'].isoformat()}" if id_of is None else id_of(ctx)

    def mark(handler: Callable[..., Awaitable[Any]]) -> Any:
        run = in_transaction(once, consumer, handler, identify, lease_s=lease_s, retention_s=retention_s)

        async def handle(ctx: dict[str, Any], *arguments: Any, **named: Any) -> Any:
            if "tx" in named:
                return await run(ctx, *arguments, **named)
            try:
                # arq drops a job that exceeds arq's time limit; one that exceeds this limit is retried.
                async with asyncio.timeout(lease_s):
                    return await run(ctx, *arguments, **named)
            except Retry:
                raise
            except Exception as error:
                wait_s = backoff.ceiling_s(ctx.get("job_try", 1), throttled=False)
                _log.exception(
                    "consumer %r: job %s failed; arq runs it again in %.1f s",
                    consumer, ctx.get("job_id"), wait_s,
                )  # fmt: skip
                raise Retry(defer=wait_s) from error

        return wrap_as(handle, handler, ())

    return mark
