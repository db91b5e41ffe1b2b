"""Between a request's claim and its handler: waiting for one in flight, and the quota of its principal.

A slot of the quota is taken after the claim: what is stored is replayed whatever the quota says.
"""

from __future__ import annotations

from onefold._idempotency.model import Ask, Claim, InFlight, Run
from onefold._idempotency.store import Store
from onefold._kernel.effects import Now, Sleep
from onefold._policy.quota import Quota, QuotaSlot
from onefold.errors import TooManyRequests

_PAUSES_S = (0.02, 0.04, 0.08, 0.15, 0.25)


async def wait_and_claim(store: Store, ask: Ask, wait_s: float) -> Claim:
    """The same request is in flight: wait for it, without holding a connection, and claim the key again."""
    give_up_at = await Now() + wait_s
    turn = 0
    claim: Claim = InFlight()
    while isinstance(claim, InFlight):
        left_s = give_up_at - await Now()
        if left_s <= 0:
            break
        await Sleep(min(left_s, _PAUSES_S[min(turn, len(_PAUSES_S) - 1)]))
        turn += 1
        claim = await store.claim(ask)
    return claim


async def take_slot(quota: Quota, principal: str, *, may_record: bool) -> QuotaSlot:
    """Raises TooManyRequests where the principal has as much as it may have."""
    found = quota.enter(principal, await Now(), may_record=may_record)
    if isinstance(found, QuotaSlot):
        return found
    if found is None:
        raise TooManyRequests(
            "You have reached your limit of requests in flight. Nothing was done. Retry when one of them has ended.",
            retry_after_s=1,
        )
    raise TooManyRequests(
        "You have reached your limit of new requests per hour. Nothing was done. Retries of earlier requests are still "
        "answered.",
        retry_after_s=found,
    )


async def take_slot_or_release(
    store: Store, ask: Ask, run: Run, quota: Quota, principal: str, keyed: bool
) -> QuotaSlot:
    """`take_slot` for a request that has its claim, which it loses where there is no slot."""
    try:
        return await take_slot(quota, principal, may_record=keyed)
    except TooManyRequests:
        await store.release(ask, run)
        raise
