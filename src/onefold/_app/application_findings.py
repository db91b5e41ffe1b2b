"""What `onefold doctor` and the console see of an application: its pool, its broker and its console.

A finding says what was checked and how it is. What is not visible from here (a console that runs alone, what a confirm
of the application's own broker means) is named as such, and never reported as a fault.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from onefold._app.base_app import BaseOnefold, run_flow, with_broker
from onefold._app.health_findings import HealthFinding
from onefold._app.setup_findings import check_pool, check_retention
from onefold._kernel.ports import Broker
from onefold.brokers._adapters import broker_name
from onefold.db._pool_sizes import find_pool_size
from onefold.errors import ConfigurationError, OnefoldError, SchemaMissing

#: How long a broker may take to answer, where no person waits for a page.
BROKER_S: Final = 30.0

#: What a confirm of each adapter says, and what it does not; by the name of its class.
_CONFIRMS: Final = {
    "LocalBroker": "a confirm is a COMMIT of this database",
    "NatsBroker": "JetStream confirms what its stream has stored. How many servers keep a copy: the stream's "
    "`num_replicas`",
    "KafkaBroker": "Kafka confirms when all in-sync replicas have it; how many those are is min.insync.replicas of the "
    "topic, which is not visible from here",
    "RabbitBroker": "RabbitMQ confirms what a durable queue has, and returns what none has",
    "RedisBroker": "the server confirms before it syncs, unless appendfsync is always: a power cut may take the last "
    "second",
    "SqsBroker": "SQS confirms what it has stored in several places",
    "WebhookBroker": "a confirm is a 2xx of the endpoint",
}

#: A request without credentials and without a cookie, from an address that documentation has for itself (RFC 5737).
_ANONYMOUS: Final = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "scheme": "https",
    "server": ("console.example", 443),
    "client": ("203.0.113.7", 50_000),
    "root_path": "",
    "path": "/",
    "raw_path": b"/",
    "query_string": b"",
    "headers": [(b"host", b"console.example")],
    "session": {},
    "state": {},
}


async def check_application(once: BaseOnefold[Any], *, broker_s: float = BROKER_S) -> list[HealthFinding]:
    """All findings."""
    findings = [await check_broker(once, broker_s), *[finding async for finding in _check_consoles(once)]]
    size = find_pool_size(once._database)
    if size is not None and once._database.dialect == "postgres":
        findings.append(await run_flow(once, lambda _: check_pool(size)))
    retentions = {
        operation: policy.retention_s
        for routes in once._layer.applications
        for operation, policy in routes.operations().items()
    }
    return [*findings, check_retention(retentions.items())] if retentions else findings


async def check_broker(once: BaseOnefold[Any], within_s: float = BROKER_S) -> HealthFinding:
    """Open the broker: its adapter refuses settings that would lose messages."""
    shown = broker_name(once._broker)

    async def read_kind(_: object, broker: Broker) -> str:
        for consumer in once._consumers:
            consumer.check_redelivery(broker.redelivery_s)  # a ledger that forgets before the broker does
        return type(broker).__name__

    if once._broker is None and once._database.dialect != "sqlite":
        return HealthFinding("Broker", "good", "The application has none: it publishes nothing.")
    try:
        async with asyncio.timeout(within_s):
            kind = await with_broker(once, read_kind)
    except ConfigurationError as error:
        return HealthFinding("Broker", "bad", f"{shown} is refused: {error}.", "Set it as the finding says.")
    except (TimeoutError, OnefoldError) as error:
        if isinstance(error.__cause__, SchemaMissing):
            text = f"{shown} is this database, whose tables are missing: nothing can be published or consumed."
            return HealthFinding("Broker", "bad", text, "onefold migrate.")
        reason = str(error) or f"no answer within {within_s:g} s"
        return HealthFinding("Broker", "bad", f"{shown}: {reason}.", "Events wait until it is there: start it.")
    means = _CONFIRMS.get(kind, "it is the application's own, and what its confirm means is not visible from here")
    return HealthFinding("Broker", "good", f"{shown} answers; {means}.")


async def _check_consoles(once: BaseOnefold[Any]) -> AsyncIterator[HealthFinding]:
    module = sys.modules.get("onefold._console.app")
    consoles = [] if module is None else list(_find_consoles(once, module.Console))
    for path, console in consoles:
        yield await _check_console(path, console)
    if not consoles:
        text = "None is mounted in the application. One that runs alone (onefold console) is not visible from here."
        yield HealthFinding("Console", "good", text)


async def _check_console(path: str, console: Any) -> HealthFinding:
    """Send the console a request without credentials, which it has to refuse."""
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    access = console._parts.access
    if not hasattr(access, "_authorize"):
        return HealthFinding("Console", "good", f"At {path}: by token. Have a proxy with TLS in front of it.")
    try:
        signed_in = await access.identify(Request(dict(_ANONYMOUS)), time.time())
    except HTTPException:
        signed_in = None
    except Exception as error:  # the application's own function, on a request that no server made
        text = f"At {path}: authorize raised {type(error).__name__} for a request without credentials, which is 500."
        return HealthFinding("Console", "good", text)
    if signed_in is None:
        return HealthFinding("Console", "good", f"At {path}: a request without credentials is refused.")
    role = signed_in.operator.role.value
    return HealthFinding(
        "Console",
        "bad",
        f"At {path}: authorize lets a request without credentials in, with role {role}. Everyone who reaches the "
        "application sees keys and messages there" + (", and can redrive and discard." if role == "act" else "."),
        "Have authorize return None for requests that are not signed in.",
    )


def _find_consoles(once: BaseOnefold[Any], kind: type) -> Iterator[tuple[str, Any]]:
    for installed in once._layer.installed:
        for route in getattr(installed.app, "routes", ()):
            mounted = getattr(route, "app", None)
            if isinstance(mounted, kind):
                yield getattr(route, "path", "/") or "/", mounted
