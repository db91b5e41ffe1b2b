"""The engine that the warehouse's sagas run on, by its address: the sagas are the same on each.

sqlite:///sagas.db and postgresql://... are DBOS, in this process. restate://HOST:PORT is a server's ingress, with
?admin=HOST:PORT and listen=HOST:PORT, where this process serves it. temporal://HOST:PORT is a server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from onefold.sagas import SagaDefinition, SagaEngine
from onefold.telemetry import Listener

#: A step whose process was killed is run again after so many seconds.
DEAD_AFTER_S = 2.0


def saga_engine(url: str, sagas: Sequence[SagaDefinition[Any, Any]], listeners: list[Listener]) -> SagaEngine:
    """What it needs is imported when it is chosen: an application has one engine."""
    address = urlsplit(url)
    if address.scheme == "restate":
        from onefold.sagas.restate import Restate

        asked = parse_qs(address.query, strict_parsing=True)
        return Restate(
            ingress=f"http://{address.netloc}",
            admin=f"http://{asked['admin'][0]}",
            listen=asked["listen"][0],
            service="warehouse",
            sagas=sagas,
            stop_s=1,
            listener=listeners,
        )
    if address.scheme == "temporal":
        from onefold.sagas.temporal import Temporal

        return Temporal(
            address.netloc,
            task_queue="warehouse",
            sagas=sagas,
            dead_after_s=DEAD_AFTER_S,
            stop_s=1,
            listener=listeners,
        )
    from onefold.sagas.dbos import Dbos

    return Dbos(url, sagas=sagas, takeover_s=0.5, listener=listeners)
