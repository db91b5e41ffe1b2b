"""Dramatiq: an actor whose messages are handled once, in one transaction with their ledger row.

    @handled_once(once, "fulfilment", dramatiq.actor, max_retries=20)
    def ship(order: str, tx: Transaction) -> None: ...

It replaces `@dramatiq.actor`, whose options it takes. Dramatiq acknowledges after the actor; one that
failed it sends again, under the same id, if its broker has the middleware Retries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onefold._kernel.arguments import named_arguments
from onefold._kernel.extras import missing_extra

try:
    from dramatiq.middleware import CurrentMessage, Retries
except ModuleNotFoundError as error:
    raise missing_extra(error, "dramatiq") from None
from dramatiq import Broker, Message, get_broker

from onefold._worker.ledger_reaper import RETENTION_S
from onefold._worker.task_queues import SupportsHandling, in_place_of, in_transaction
from onefold.errors import ConfigurationError


@named_arguments("handled_once", hints={"actor": in_place_of("dramatiq.actor")})
def handled_once(
    once: SupportsHandling,
    consumer: str,
    actor: Callable[..., Any],
    *,
    lease_s: float = 60.0,
    retention_s: float = RETENTION_S,
    id_of: Callable[[Message[Any]], str] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """`actor` is `dramatiq.actor`, `options` are its own. The handler's parameter `tx` gets the message's transaction,
    which may last `lease_s`. `consumer` names it in the ledger, which knows a message by its id (or by what `id_of`
    says) and remembers for `retention_s`. What fails is retried as Dramatiq does: 20 times, unless the options say
    otherwise."""

    declared: Any = None

    def identify(arguments: Sequence[Any], named: dict[str, Any]) -> str | None:
        message = CurrentMessage.get_current_message()
        if message is None or message.actor_name != declared.actor_name:  # called by another actor, as a function
            return None
        return message.message_id if id_of is None else id_of(message)

    def mark(handler: Callable[..., Any]) -> Any:
        nonlocal declared
        run = in_transaction(once, consumer, handler, identify, lease_s=lease_s, retention_s=retention_s)
        _prepare(options.get("broker") or get_broker(), consumer)
        declared = actor(**options)(run)
        return declared

    return mark


def _prepare(broker: Broker, consumer: str) -> None:
    """Require Retries, so that failed messages come again, and add CurrentMessage, which has the message's id."""
    if not any(isinstance(middleware, Retries) for middleware in broker.middleware):
        raise ConfigurationError(
            f"the broker of {consumer!r} ({type(broker).__name__}) has no middleware Retries: Dramatiq would "
            "acknowledge a message whose actor fails, and it would be lost. Add dramatiq.middleware.Retries()"
        )
    if not any(isinstance(middleware, CurrentMessage) for middleware in broker.middleware):
        broker.add_middleware(CurrentMessage())
