"""What people do to sagas, noted in the saga's own history before it is done."""

from __future__ import annotations

from onefold._saga.engine import SagaEngine


async def retry_saga(engine: SagaEngine, saga_id: str, *, actor: str) -> bool:
    """Have a stopped saga go on, with the code that its processes have now. False: it has ended."""
    await engine.audit(saga_id, action="retry", actor=actor)
    return await engine.retry(saga_id)


async def cancel_saga(engine: SagaEngine, saga_id: str, *, actor: str, why: str = "") -> bool:
    """Have a saga undo what it has done. False: it has ended."""
    await engine.audit(saga_id, action="cancel", actor=actor)
    return await engine.cancel(saga_id, reason=f"cancelled by {actor}{f': {why}' if why else ''}")
