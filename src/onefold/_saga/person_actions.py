"""Operator actions on sagas, recorded in the saga's own history before they are done."""

from __future__ import annotations

from onefold._saga.engine import SagaEngine


async def retry_saga(engine: SagaEngine, saga_id: str, *, actor: str) -> bool:
    """Resume a stopped saga, with the present code of its processes. False: it has ended."""
    await engine.audit(saga_id, action="retry", actor=actor)
    return await engine.retry(saga_id)


async def cancel_saga(engine: SagaEngine, saga_id: str, *, actor: str, why: str = "") -> bool:
    """Cancel a saga, which compensates its steps. False: it has ended."""
    await engine.audit(saga_id, action="cancel", actor=actor)
    return await engine.cancel(saga_id, reason=f"cancelled by {actor}{f': {why}' if why else ''}")
