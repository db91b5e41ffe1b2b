"""The Idempotency-Key header as a client sends it: what is one key, what is none, and what is refused."""

from __future__ import annotations

import os
import time

import pytest

from onefold._kernel.ids import RANDOM_BYTES, uuid7, uuid7_ms
from tests.contract.backends import Backend
from tests.contract.counting import counted
from tests.contract.plans import Plan, RequestGuard

UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"
STRICT_AND_LENIENT = pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])


@pytest.mark.contract("C01")
def test_c01_a_quoted_string_is_a_key_and_a_retry_finds_its_answer(backend: Backend) -> None:
    backend.serve(settings={"strict": True})
    first = backend.post(key=f'"{UUID}"')
    retry = backend.post(key=f'"{UUID}"')
    assert (first.status, first.replayed) == (201, False)
    assert (retry.status, retry.replayed) == (201, True)
    assert backend.rows() == ["book"]


OTHER_TYPES = ("token", UUID, "42", "4.2", "?1", ":cHJldGVuZA==:", '("a" "b")', '"a", "b"', "@1659578233", '%"a"')


@pytest.mark.contract("C02")
def test_c02_a_strict_route_refuses_every_other_structured_type(backend: Backend) -> None:
    backend.serve(settings={"strict": True})
    refused = {value: backend.post(key=value) for value in OTHER_TYPES}
    assert {value: answer.status for value, answer in refused.items()} == dict.fromkeys(OTHER_TYPES, 400)
    assert {answer.problem for answer in refused.values()} == {"key-malformed"}
    assert not backend.calls


BROKEN = (b'"a\\b"', b'"caf\xc3\xa9"', b'"caf\xe9"', b'"open', b'"a\tb"', b'"a\x07b"', b'"a"b', b'"', b'"a\x7f"')


@pytest.mark.contract("C03")
@STRICT_AND_LENIENT
def test_c03_a_broken_string_is_refused(backend: Backend, strict: bool) -> None:
    backend.serve(settings={"strict": strict})
    refused = {value: backend.post(key=value) for value in BROKEN}
    assert {value: answer.status for value, answer in refused.items()} == dict.fromkeys(BROKEN, 400)
    assert {answer.problem for answer in refused.values()} == {"key-malformed"}
    assert not backend.calls


@pytest.mark.contract("C04")
def test_c04_parameters_do_not_make_another_key(backend: Backend) -> None:
    backend.serve(settings={"strict": True})
    backend.post(key='"k"')
    for value in ('"k";x=1', '"k"; x="y";z', '  "k";a;b=?0  '):
        assert backend.post(key=value).replayed, value
    assert len(backend.calls) == 1


@pytest.mark.contract("C05")
@STRICT_AND_LENIENT
def test_c05_two_header_lines_are_refused_even_when_they_agree(backend: Backend, strict: bool) -> None:
    backend.serve(settings={"strict": strict})
    for second in ('"a"', '"b"', "b"):
        refused = backend.post(headers=(("idempotency-key", '"a"'), ("Idempotency-Key", second)))
        assert (refused.status, refused.problem) == (400, "key-malformed"), second
    assert not backend.calls


@pytest.mark.contract("C05")
def test_c05_a_comma_inside_the_quotes_is_not_two_lines(backend: Backend) -> None:
    assert backend.post(key='"a,b"').status == 201
    assert backend.post(key='"a,b"').replayed


@pytest.mark.contract("C06")
def test_c06_a_bare_key_is_the_same_key_as_in_quotes(backend: Backend) -> None:
    keys = ("k", UUID, "order_17/2024.a+b=", "18446744073709551617")
    for key in keys:
        backend.post(key=key)
        quoted = backend.post(key=f'"{key}"')
        assert (quoted.status, quoted.replayed) == (201, True), key
    assert len(backend.calls) == len(keys)


LENGTHS = (b"", b'""', b"   ", b"x" * 256, b'"' + b"x" * 256 + b'"', b"x" * 10_240, b'"' + b"x" * 10_240 + b'"', b"a b")


@pytest.mark.contract("C08")
@STRICT_AND_LENIENT
def test_c08_an_empty_or_endless_key_is_refused_before_the_store_is_asked(backend: Backend, strict: bool) -> None:
    database = counted(backend)
    backend.serve(database=database, settings={"strict": strict})
    for value in LENGTHS:
        refused = backend.post(key=value)
        assert (refused.status, refused.problem) == (400, "key-malformed"), value
    assert database.acquired == 0
    # The control: a good key does reach the store, so the counter would have seen it.
    assert backend.post(key='"good"').status == 201
    assert database.acquired > 0


METACHARACTERS = (
    "'; DROP TABLE orders; --",
    "$1 OR 1=1",
    "%s%(x)s%%",
    "?1:2@p",
    "k*[a-z]\\r\\nFLUSHALL",
    "x" * 254,
    "{key}:${jndi:ldap}",
)


@pytest.mark.contract("C08")
def test_c08_metacharacters_are_data(backend: Backend) -> None:
    for key in METACHARACTERS:
        escaped = key.replace("\\", "\\\\")
        assert backend.post(key=f'"{escaped}"').status == 201, key
        assert backend.post(key=f'"{escaped}"').replayed, key
        assert not backend.post(key=f'"{escaped}~"').replayed, key
    assert len(backend.rows()) == 2 * len(METACHARACTERS)


@pytest.mark.contract("C09")
def test_c09_onefolds_own_keys_are_ordered_by_time_and_welcome_on_the_strictest_route(backend: Backend) -> None:
    now_ms = time.time_ns() // 1_000_000
    keys = [str(uuid7(now_ms + tick, os.urandom(RANDOM_BYTES))) for tick in range(50)]
    assert keys == sorted(keys)
    assert [uuid7_ms(key) for key in keys] == [now_ms + tick for tick in range(50)]
    backend.serve(settings={"strict": True, "expiry": "refuse"})
    assert backend.post(key=f'"{keys[0]}"').status == 201
    assert backend.post(key=f'"{keys[0]}"').replayed
    assert not backend.post(key=f'"{keys[1]}"').replayed


@pytest.mark.contract("C20")
def test_c20_a_missing_key_is_a_problem_that_says_where_to_read_on(backend: Backend) -> None:
    backend.serve(settings={"required": True})
    refused = backend.post(key=None)
    assert (refused.status, refused.problem) == (400, "key-missing")
    assert refused.json["retryable"] is False
    link = refused.header("link")
    assert link == '</onefold/specification>; rel="describedby"'
    assert backend.get(link.partition(">")[0].lstrip("<")).status == 200
    assert not backend.calls


@pytest.mark.contract("C20", "C21")
def test_c20_where_a_key_is_optional_a_request_without_one_gets_its_transaction_and_runs_each_time(
    backend: Backend,
) -> None:
    assert [backend.post(key=None).status for _ in range(2)] == [201, 201]
    assert backend.rows() == ["book", "book"]
    assert backend.post(key=None, plan=Plan(status=402)).status == 402
    assert backend.post(key=None, plan=Plan(status=500)).status == 500
    assert backend.rows() == ["book", "book"]
    assert not backend.records()


@pytest.mark.contract("C21")
def test_c21_a_key_means_nothing_to_a_route_that_is_not_idempotent(backend: Backend) -> None:
    answers = [backend.post("/search", key='"k"') for _ in range(2)]
    assert [(answer.status, answer.replayed) for answer in answers] == [(201, False), (201, False)]
    assert len(backend.calls) == 2
    assert backend.post("/search", key='"broken').status == 201
    assert not backend.records()


@pytest.mark.contract("C21")
def test_c21_a_key_means_nothing_to_get(backend: Backend) -> None:
    backend.serve(settings={"required": True})
    answers = [backend.get("/orders", key='"k"', plan=Plan(status=200)) for _ in range(2)]
    assert [(answer.status, answer.replayed) for answer in answers] == [(200, False), (200, False)]
    assert len(backend.calls) == 2
    assert not backend.records()


@pytest.mark.contract("C23")
def test_c23_the_same_key_on_another_route_or_method_is_another_operation(backend: Backend) -> None:
    operations = (
        ("POST", "/orders"),
        ("PATCH", "/orders"),
        ("PUT", "/orders"),
        ("DELETE", "/orders"),
        ("POST", "/orders/1/refunds"),
    )
    for method, path in operations:
        first = backend.post(path, key='"k"', method=method, plan=Plan(body=f"{method} {path}".encode()))
        assert (first.status, first.replayed) == (201, False)
    for method, path in operations:
        again = backend.post(path, key='"k"', method=method)
        assert (again.replayed, again.body) == (True, f"{method} {path}".encode())
    assert backend.rows() == ["book"] * len(operations)


@pytest.mark.contract("C22", "C23")
def test_c23_the_same_key_below_another_mount_is_another_operation(backend: Backend) -> None:
    places = ("/eu", "/us", "/us/ca", "")
    for mount in places:
        first = backend.post(mount=mount, key='"k"', plan=Plan(body=f"below {mount}".encode()))
        assert (first.status, first.replayed) == (201, False), mount
    for mount in places:
        again = backend.post(mount=mount, key='"k"')
        assert (again.replayed, again.body) == (True, f"below {mount}".encode())
    assert backend.rows() == ["book"] * len(places)


@pytest.mark.contract("C23")
def test_c23_the_same_key_runs_below_two_mounts_at_once(backend: Backend) -> None:
    guard = RequestGuard()
    running = backend.start(mount="/eu", key='"k"', plan=Plan(guard=guard, writes=False))
    guard.await_arrival()
    assert backend.post(mount="/us", key='"k"').status == 201
    assert backend.post(mount="/eu", key='"k"').problem == "key-in-flight"
    guard.open()
    assert running.answer().status == 201
    assert backend.post(mount="/us", key='"k"').status == 201


@pytest.mark.contract("C23")
def test_c23_one_route_with_another_path_is_another_payload(backend: Backend) -> None:
    backend.post("/orders/1/refunds", key='"k"')
    other = backend.post("/orders/2/refunds", key='"k"')
    assert (other.status, other.problem) == (422, "key-reused")
    assert len(backend.calls) == 1
