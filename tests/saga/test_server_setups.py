"""Engines on servers that are set up wrongly say so where they are written or opened, with the way out."""

from __future__ import annotations

import logging
import socket
from typing import Any

import httpx
import pytest
from hypercorn.asyncio import serve

from onefold._engines.restate import restate_service
from onefold.errors import ConfigurationError, StoreUnavailable
from onefold.sagas.restate import Restate
from onefold.sagas.temporal import Temporal
from onefold.testing.fault_proxy import HOST, reserve_port
from onefold.testing.servers import PrivateRestate
from tests.saga.conformance.sagas import order
from tests.saga.server_engines import RestateOpener, TemporalOpener
from tests.support.patience import PATIENCE_S
from tests.support.temporal_server import PrivateTemporal

HERE = {"ingress": "http://localhost:8080", "admin": "http://localhost:9070", "sagas": [order]}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ingress": "localhost:8080"}, r"ingress='localhost:8080' must be the address .* 'http://localhost:8080'"),
        ({"admin": ""}, r"admin='' must be the address"),
        ({"admin": "htp://me:pa55@restate:9070"}, r"admin='htp://restate:9070' must be the address"),
        ({"url": "http://me:pa55@orders:9080"}, r"url='http://orders:9080' is where Restate reaches listen="),
        ({"service": "my sagas"}, r"service='my sagas' must be letters"),
        ({"url": "http://orders:9080"}, r"url='http://orders:9080' is where Restate reaches listen="),
        ({"identity_keys": ["abc"]}, r"identity_keys has 'abc'.*publickeyv1_"),
        ({"retention_days": 1}, r"retention_days=1 is out of range: choose 7 to 3650"),
        ({"stop_s": -1}, r"stop_s=-1"),
        ({"sagas": []}, r"sagas=\[\] is empty"),
    ],
)
def test_restate_that_is_written_wrongly(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Restate(**(HERE | given))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"server": 7233}, r"server=7233 must be an address.* 'localhost:7233'"),
        ({"dead_after_s": 0}, r"dead_after_s=0"),
        ({"sagas": []}, r"sagas=\[\] is empty"),
    ],
)
def test_temporal_that_is_written_wrongly(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Temporal(**({"server": "localhost:7233", "sagas": [order]} | given))


@pytest.mark.parametrize("listen", ["9080", "localhost", ":9080"])
async def test_an_address_without_a_host_or_a_port_is_told(listen: str) -> None:
    engine = Restate(ingress="http://localhost:8080", admin="http://localhost:9070", sagas=[order], listen=listen)
    with pytest.raises(ConfigurationError, match=r"listen='.*' must be a host and a port, as '127\.0\.0\.1:9080'"):
        await engine.__aenter__()


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server((HOST, 0)) as taken:
        listen = f"{HOST}:{taken.getsockname()[1]}"
        engine = Restate(ingress="http://localhost:8080", admin="http://localhost:9070", sagas=[order], listen=listen)
        with pytest.raises(ConfigurationError, match=rf"listen='{listen}': this process cannot listen there"):
            await engine.__aenter__()


async def test_a_server_that_is_not_there_is_told_and_the_port_is_free_again() -> None:
    with reserve_port() as none, reserve_port() as own:
        away, listen = (f"{HOST}:{port.getsockname()[1]}" for port in (none, own))
        engine = Restate(ingress=f"http://{away}", admin=f"http://{away}", sagas=[order], listen=listen)
        with pytest.raises(StoreUnavailable, match=rf"Restate does not answer http://{away}/deployments"):
            await engine.__aenter__()
        socket.create_server((HOST, own.getsockname()[1])).close()
        with pytest.raises(StoreUnavailable, match=rf"Temporal at {away} does not answer"):
            await Temporal(away, sagas=[order]).__aenter__()


async def test_an_address_that_restate_cannot_reach_is_told(restate: PrivateRestate) -> None:
    with reserve_port() as own, reserve_port() as other:
        listen, url = (f"{HOST}:{port.getsockname()[1]}" for port in (own, other))
        engine = Restate(
            ingress=restate.ingress, admin=restate.admin, sagas=[order], listen=listen, url=f"http://{url}"
        )
        with pytest.raises(ConfigurationError, match=rf"does not take http://{url} .*url= must be where"):
            await engine.__aenter__()


async def test_a_service_that_was_never_registered_is_told(restate: PrivateRestate) -> None:
    async with Restate(ingress=restate.ingress, admin=restate.admin, service="nowhere", sagas=[order]) as engine:
        with pytest.raises(ConfigurationError, match=r"has no service 'nowhere'.* listen="):
            await engine.start(order, "unregistered", {"item": "book"})


async def test_a_start_is_known_for_weeks(restate: PrivateRestate) -> None:
    opener = RestateOpener(restate)
    async with opener([order]) as engine:
        await engine.start(order, "retained", {"item": "book"})
        await engine.result("retained", timeout_s=PATIENCE_S)
        [found] = await engine._api._query(
            "SELECT completion_retention, journal_retention FROM sys_invocation "
            f"WHERE target_service_name = '{opener.service}'"
        )
    opener.close()
    assert {*found.values()} == {"PT2592000S"}


async def test_requests_that_the_server_did_not_sign_are_refused(restate: PrivateRestate) -> None:
    with reserve_port() as own:
        listen = f"{HOST}:{own.getsockname()[1]}"
        engine = Restate(
            ingress=restate.ingress,
            admin=restate.admin,
            listen=listen,
            sagas=[order],
            identity_keys=["publickeyv1_w7YHemBctH5Ck2nQRQ47iBBqhNHy4FV7t2Usbye2A6f"],
        )
        with pytest.raises(ConfigurationError, match=f"does not take http://{listen} .*401"):
            await engine.__aenter__()


async def test_a_service_is_tried_for_as_long_as_it_takes(restate: PrivateRestate) -> None:
    """By default Restate pauses a saga after half an hour, and a person has to resume it."""
    opener = RestateOpener(restate)
    async with opener([order]), httpx.AsyncClient() as client:
        told = (await client.get(f"{restate.admin}/services/{opener.service}")).json()
    opener.close()
    assert told["retry_policy"]["max_attempts"] == 10_000_000
    assert told["abort_timeout"] == "1d"


async def test_a_namespace_that_is_not_there_is_told(temporal: PrivateTemporal) -> None:
    with pytest.raises(ConfigurationError, match="namespace='nowhere' is not there"):
        await Temporal(temporal.address, namespace="nowhere", sagas=[order]).__aenter__()


async def test_a_namespace_that_forgets_soon_is_told(
    temporal: PrivateTemporal, caplog: pytest.LogCaptureFixture
) -> None:
    """The default of Temporal's development server is a day."""
    with caplog.at_level(logging.WARNING, "onefold.saga"):
        async with TemporalOpener(temporal)([order], serve=False):
            pass
    assert "1 day, 0:00:00: a start that is repeated later runs again" in caplog.text


async def test_an_engine_that_is_not_opened_is_told() -> None:
    with pytest.raises(ConfigurationError, match="async with Temporal"):
        await Temporal("localhost:7233", sagas=[order]).start(order, "unopened", {"item": "book"})


async def test_a_connection_that_ends_badly_does_not_fail_the_end_of_the_engine(
    restate: PrivateRestate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hypercorn raises what its connections ended with, such as data for a request that was ended just before."""

    async def serve_badly(*given: Any, **named: Any) -> None:
        await serve(*given, **named)
        raise ExceptionGroup("unhandled errors in a TaskGroup", [KeyError(5)])

    monkeypatch.setattr(restate_service, "serve", serve_badly)
    opener = RestateOpener(restate)
    async with opener([order]) as engine:
        await engine.start(order, "ends-badly", {"item": "book"})
        await engine.result("ends-badly", timeout_s=PATIENCE_S)
    opener.close()
