"""Addresses as people see them: no secret is left, whatever the address looks like."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold._kernel.redaction import redact


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("shop.db", "shop.db"),
        (":memory:", ":memory:"),
        ("local", "local"),
        ("local?lease_s=3", "local"),
        ("sqlite:///data/shop.db", "sqlite:///data/shop.db"),
        ("postgresql://127.0.0.1:5432/shop?password=secret", "postgresql://127.0.0.1:5432/shop"),
        ("postgresql://ann:secret@db/shop", "postgresql://db/shop"),
        ("postgresql://ann:secret@[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("postgresql://ann:secret/shop", "postgresql://..."),
        ("nats://ann:secret@one:4222,nats://ann:secret@two:4222", "nats://..."),
        ("nats://one:4222,nats://two:4222", "nats://one:4222,..."),
        ("nats://secret@one:4222", "nats://one:4222"),
        ("kafka://ann:secret@one:9092,two:9092", "kafka://one:9092,..."),
        ("redis://host:6379/0?password=secret", "redis://host:6379/0"),
        ("redis://ann:sec/ret@host", "redis://..."),
        ("redis://ann:sec?ret@host", "redis://..."),
        ("redis://ann:sec#ret@host", "redis://..."),
        ("redis://ann:sec@ret@host/0", "redis://host/0"),
        ("redis://ann:s@ec/ret@host", "redis://..."),
        ("redis://ann:[secret@host", "redis://host"),
        ("redis://:secret", "redis://..."),
        ("redsi://:secret@host", "redsi://host"),
        ("redis:/:secret@host", "..."),
        ("redis//:secret@host", "..."),
        ("redis:secret", "..."),
        ("ann:secret@host", "..."),
        ("host=db user=ann password=secret dbname=shop", "..."),
        ("host=db password = secret", "..."),
        ("https://hooks.example/T000/secret?x=secret", "https://hooks.example"),
        ("https://ann:secret@hooks.example:8443/T000/secret", "https://hooks.example:8443"),
    ],
)
def test_an_address_is_shown_without_its_secrets(given: str, shown: str) -> None:
    assert redact(given) == shown
    assert "sec" not in redact(given)


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/refunds?token=secret", "/v1/refunds"),
        ("/orders/17/customer-subscription-refunds", "/orders/17/customer-subscription-refunds"),
        ("/bot110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/sendMessage", "/.../sendMessage"),
        ("/services/T0000/B0000/aVeryLongTokenWithoutDigits", "/services/T0000/B0000/..."),
        ("/hooks/0192f0c1-7f3a-7b6e-8c51-3d2a9e4b5f60/run", "/hooks/.../run"),
        ("/hooks/%41aaaaaaaaaaaaaaaaaaa", "/hooks/..."),
    ],
)
def test_a_path_that_is_asked_for_is_shown_without_what_may_be_a_token(path: str, shown: str) -> None:
    assert redact(f"https://api.test{path}", with_path=True) == f"https://api.test{shown}"


@given(
    scheme=st.sampled_from(["redis", "nats", "amqp", "postgresql", "https", "kafka", "redsi"]),
    before=st.text(alphabet="abc@:/?#[],%", max_size=8),
    after=st.text(alphabet="abc@:/?#[],%", max_size=8),
    options=st.sampled_from(["", "/0", "?password=Hunter2", "/hooks/Hunter2?token=Hunter2#Hunter2"]),
)
def test_no_password_survives_however_it_is_spelled(scheme: str, before: str, after: str, options: str) -> None:
    if scheme != "https":
        options = options.replace("/hooks/Hunter2", "/0")
    assert "Hunter2" not in redact(f"{scheme}://ann:{before}Hunter2{after}@host:6379{options}")
