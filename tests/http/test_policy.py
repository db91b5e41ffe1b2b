"""Settings are checked when they are made, and a mistake is named with its value and its range."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold import Onefold, single_principal
from onefold._http.route_policy import Policy, Settings
from onefold.errors import ConfigurationError


@pytest.fixture
def once(tmp_path: Path) -> Onefold:
    return Onefold(tmp_path / "app.db", principal=single_principal)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"wait_s": -1}, "wait_s=-1"),
        ({"wait_s": 61}, "wait_s=61"),
        ({"lease_s": 0}, "lease_s=0"),
        ({"retention_s": 0.5}, "retention_s=0.5"),
        ({"retention_s": 30, "lease_s": 60}, "lease_s=60"),
        ({"body_bytes_max": -1}, "body_bytes_max=-1"),
        ({"response_bytes_max": 1 << 40}, "response_bytes_max"),
        ({"body_timeout_s": 0}, "body_timeout_s=0"),
        ({"expiry": "never"}, "expiry='never'"),
        ({"store_down": "maybe"}, "store_down='maybe'"),
        ({"headers_kept": frozenset({"set-cookie"})}, "'set-cookie'.*credentials"),
        ({"headers_kept": frozenset({"Proxy-Authentication-Info"})}, "'proxy-authentication-info'.*credentials"),
        ({"headers_kept": frozenset({"Content-Length"})}, "'content-length'.*length of its own body"),
        ({"headers_kept": frozenset({"transfer-encoding"})}, "'transfer-encoding'.*one connection"),
        ({"headers_kept": frozenset({"connection"})}, "'connection'.*one connection"),
        ({"headers_kept": frozenset({"keep-alive"})}, "'keep-alive'.*one connection"),
        ({"headers_kept": frozenset({"te"})}, "'te'.*one connection"),
        ({"headers_kept": frozenset({"trailer"})}, "'trailer'.*one connection"),
        ({"headers_kept": frozenset({"upgrade"})}, "'upgrade'.*one connection"),
        ({"headers_kept": frozenset({"proxy-connection"})}, "'proxy-connection'.*one connection"),
        ({"headers_kept": frozenset({"Idempotent-Replayed"})}, "'idempotent-replayed'.*onefold sets it"),
        ({"headers_kept": frozenset({"x-order: 1"})}, "'x-order: 1'.*no header"),
        ({"headers_kept": frozenset({""})}, "''.*no header"),
        ({"headers_kept": frozenset({"x-größe"})}, "'x-größe'.*no header"),
        ({"headers_kept": frozenset({"x-order\r\nset-cookie"})}, "no header"),
        ({"headers_kept": frozenset({"x-order\n"})}, "no header"),
        ({"wait_s": float("nan")}, "wait_s=nan"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(once: Onefold, settings: Settings, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        once.policy(**settings)


def test_a_route_s_own_settings_win_over_the_application_s(tmp_path: Path) -> None:
    once = Onefold(tmp_path / "app.db", principal=single_principal, defaults={"wait_s": 5, "strict": True})
    assert once.policy(wait_s=1) == Policy(principal=single_principal, wait_s=1, strict=True)


def test_a_route_without_a_principal_is_refused_when_it_is_declared_with_the_way_out(tmp_path: Path) -> None:
    once = Onefold(tmp_path / "app.db")
    with pytest.raises(ConfigurationError, match="single_principal"):
        once.idempotent(required=True)


def test_an_operation_that_cannot_be_read_is_refused_by_name(once: Onefold) -> None:
    for operation in ("payments", "GET /payments", "POST payments", "post /payments"):
        with pytest.raises(ConfigurationError, match=operation.replace("/", "/")):
            once.wsgi(lambda environ, start: (), {operation: once.policy()})


def test_an_application_onefold_does_not_know_is_refused_with_the_way_out(once: Onefold) -> None:
    with pytest.raises(ConfigurationError, match=r"once\.asgi"):
        once.install(object())


def test_pages_must_be_a_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="pages='onefold'"):
        Onefold(tmp_path / "app.db", pages="onefold")
