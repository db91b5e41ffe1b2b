"""Celery: a task whose messages are handled once, in one transaction with their ledger row.

    @handled_once(once, "fulfilment", app.task, max_retries=20)
    def ship(order: str, tx: Transaction) -> None: ...

It replaces `@app.task` (or `@shared_task`), whose options it takes. Celery by itself acknowledges a
message before its task runs, and drops one that fails: such a task is acknowledged after COMMIT, put back when its
process dies, and retried when it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onefold._kernel.arguments import named_arguments
from onefold._kernel.extras import missing_extra

try:
    from celery import current_task
except ModuleNotFoundError as error:
    raise missing_extra(error, "celery") from None

from onefold._worker.ledger_reaper import RETENTION_S
from onefold._worker.task_queues import TRIES, SupportsHandling, in_place_of, in_transaction, refuse


@named_arguments("handled_once", hints={"task": in_place_of("app.task")})
def handled_once(
    once: SupportsHandling,
    consumer: str,
    task: Callable[..., Any],
    *,
    lease_s: float = 60.0,
    retention_s: float = RETENTION_S,
    id_of: Callable[[Any], str] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """`task` is `app.task` or `shared_task`, `options` are its own. The handler's parameter `tx` gets the message's
    transaction, which may last `lease_s`. `consumer` names it in the ledger, which knows a message by its task id (or
    by what `id_of` says of the task's request) and remembers for `retention_s`. Any exception is retried at growing
    distances, 15 times at the most, where the options say nothing else (`autoretry_for`, `retry_backoff`,
    `max_retries`)."""
    refuse(
        consumer,
        options,
        {"acks_late": (False, None), "reject_on_worker_lost": (False, None)},
        "Celery would acknowledge a message before it is handled, and lose it when its process dies",
    )
    defaults = {"autoretry_for": (Exception,), "retry_backoff": True, "max_retries": TRIES}
    # A task that is out of retries is rejected, not acknowledged: a dead letter exchange gets it, where there is one.
    late = {"acks_late": True, "reject_on_worker_lost": True, "acks_on_failure_or_timeout": False}

    celery_task: Any = None

    def identify(arguments: Sequence[Any], named: dict[str, Any]) -> str | None:
        request = getattr(current_task, "request", None)  # outside of a task it stands for None
        if request is None or request.id is None:
            return None
        if getattr(request, "task", None) not in (None, celery_task.name):  # called by another task, as a function
            return None
        return str(request.id) if id_of is None else id_of(request)

    def mark(handler: Callable[..., Any]) -> Any:
        nonlocal celery_task
        run = in_transaction(once, consumer, handler, identify, lease_s=lease_s, retention_s=retention_s)
        celery_task = task(**{**defaults, **late, **options})(run)
        return celery_task

    return mark
