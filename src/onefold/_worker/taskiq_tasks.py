"""taskiq: a task whose messages are handled once, in one transaction with their ledger row.

    @handled_once(once, "fulfilment", broker.task, max_retries=20)
    async def ship(order: str, tx: Transaction) -> None: ...

It replaces `@broker.task`, whose labels it takes. taskiq acknowledges a message whose task failed, after
a retry middleware has sent it again, under the same id; without one it would be lost.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from onefold._kernel.arguments import named_arguments
from onefold._kernel.extras import missing_extra

try:
    from taskiq import Context, TaskiqDepends, TaskiqMessage, TaskiqMiddleware
except ModuleNotFoundError as error:
    raise missing_extra(error, "taskiq") from None

from onefold._worker.ledger_reaper import RETENTION_S
from onefold._worker.task_queues import TRIES, SupportsHandling, in_place_of, in_transaction, refuse
from onefold.errors import ConfigurationError

_CONTEXT: Final = inspect.Parameter(
    "onefold_context", inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Context, TaskiqDepends()]
)

_log = logging.getLogger("onefold.consumer")


@named_arguments("handled_once", hints={"task": in_place_of("broker.task")})
def handled_once(
    once: SupportsHandling,
    consumer: str,
    task: Callable[..., Any],
    *,
    lease_s: float = 60.0,
    retention_s: float = RETENTION_S,
    id_of: Callable[[TaskiqMessage], str] | None = None,
    **labels: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """`task` is `broker.task`, `labels` are its own. The handler's parameter `tx` gets the message's transaction, which
    may last `lease_s`. `consumer` names it in the ledger, which knows a message by its task id (or by what `id_of`
    says) and remembers for `retention_s`. What fails is retried by the broker's retry middleware, 15 times unless
    `max_retries` says otherwise."""
    refuse(
        consumer,
        {**labels, "ack_type": _plain(labels.get("ack_type"))},
        {"ack_type": ("when_received", "manual"), "retry_on_error": (False,)},
        "taskiq would acknowledge a message that was not handled, and it would be lost",
    )
    defaults = {"ack_type": "when_saved", "retry_on_error": True, "max_retries": TRIES}
    warned: set[str] = set()

    def identify(arguments: Sequence[Any], named: dict[str, Any]) -> str | None:
        context: Context | None = named.pop(_CONTEXT.name, None)
        if context is None:
            return None
        if not context.is_ackable and consumer not in warned:
            warned.add(consumer)
            _log.warning(
                "consumer %r: its broker (%s) has no acknowledgements: a message is lost if its process dies",
                consumer, type(context.broker).__name__,
            )  # fmt: skip
        return context.message.task_id if id_of is None else id_of(context.message)

    def mark(handler: Callable[..., Any]) -> Any:
        run = in_transaction(
            once, consumer, handler, identify, lease_s=lease_s, retention_s=retention_s, also=(_CONTEXT,)
        )
        declared = task(**{**defaults, **labels})(run)
        _check(consumer, declared.broker.middlewares)
        return declared

    return mark


def _plain(ack_type: Any) -> Any:
    """An AcknowledgeType, or its name."""
    return str(getattr(ack_type, "value", ack_type)).lower()


def _check(consumer: str, middlewares: Sequence[TaskiqMiddleware]) -> None:
    if all(type(middleware).on_error is TaskiqMiddleware.on_error for middleware in middlewares):
        raise ConfigurationError(
            f"the broker of {consumer!r} has no retry middleware: taskiq would acknowledge a message whose task fails, "
            "and it would be lost. Give it one before its tasks are declared: "
            "broker.with_middlewares(SimpleRetryMiddleware())"
        )
