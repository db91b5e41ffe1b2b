"""SQS (on moto), as the conformance suite sees it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onefold.brokers.sqs import SqsBroker
from onefold.testing.conformance.brokers import BrokerSubject
from tests.support.moto_server import REGION, PrivateMoto
from tests.support.patience import PATIENCE_S

#: For the promises about leases; moto is too slow to hand out 500 messages within two seconds.
LEASE_S = 2
LONG_LEASE_S = 60
BYTES_MAX = 150_000


@asynccontextmanager
async def sqs_subject(server: PrivateMoto, lease_s: int = LONG_LEASE_S) -> AsyncIterator[BrokerSubject]:
    url = f"sqs://{REGION}/c{secrets.token_hex(6)}?endpoint={server.url}"

    def broker() -> SqsBroker:
        return SqsBroker(
            url, session=server.session, confirm_s=PATIENCE_S, lease_s=lease_s, poll_s=1, message_bytes_max=BYTES_MAX
        )

    # The suite also publishes what no consumer asked for, which waits where no queue gets it.
    catch_all = broker()
    await catch_all.open()
    await catch_all.subscribe("everything", [">"])
    await catch_all.close()
    yield BrokerSubject(
        broker=broker,
        too_large_bytes=BYTES_MAX,
        deduplicates=True,
        many=25,
        lease_s=lease_s if lease_s == LEASE_S else None,
    )
