"""What earlier builds have stored and locked stays what it was: names, fingerprints and locks of requests, to the byte.

The examples were made by an earlier build, once. A record or a lock of a process that still runs it must be recognised
by this one: an example that differs is a new `_VERSION`, never a new example.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._http.request import Request
from onefold._http.request_identity import Naming, make_ask
from onefold._http.route_policy import Route, Settings, policy_of_settings, single_principal
from onefold._http.routes import routes_of
from onefold._idempotency import fingerprint as module
from onefold._idempotency.fingerprint import (
    RequestContent,
    canonical_json,
    earlier_fingerprint,
    fingerprint,
    named_strategy,
    raw_bytes,
    selected_fields,
)
from onefold._idempotency.model import Ask

KEY = bytes(range(32))

BODIES = {
    "payment": b'{"account": "acme", "amount": 5}',
    "nested": '{"b":[1,2.50,-0,1e3,{"#":1}],"a":{"é":"\\u00e9\\ud83d","":null},"c":"\\u007f\\/"}'.encode(),
    "long numbers": b"[123456789012345678901, 12345678901234567890, 1E400, 0.1e-7, -0.0, 1.0]",
    "a text": b' "plain" ',
    "repeated member": b'{"a":1,"a":2}',
    "not JSON": b"a=1&b=2",
    "nothing": b"",
}

#: By body: the fingerprints of `canonical_json`, `raw_bytes` and `selected_fields("account", "a.x")`, and of the first
#: of them as onefold 0.1 made it.
FINGERPRINTS: Mapping[str, tuple[str, str, str, str]] = {
    "payment": (
        "18f6ddc1b0df05a6661a8104a3c1b0f66a",
        "b035f9832b569ae32743bae8ff74d59472",
        "22fa4aa07338cb3bbe777aebecf8ef8266612e782c6163636f756e74",
        "6bc9bd15dcf20aeb122c20166b7204e4",
    ),
    "nested": (
        "c9e13a2778d27057884b109482bc94c96a",
        "4252752d3b98a4b70349aa3daf99144b72",
        "b0765c5203aa6e25e75b08eb585579bd66612e782c6163636f756e74",
        "9eae0236cc385c45353ffa90f90af9d7",
    ),
    "long numbers": (
        "e30765d3c5f95df98af3f8f73f5275ae6a",
        "684c864915f713231b0365ccebca3d7272",
        "e30765d3c5f95df98af3f8f73f5275ae6a",
        "cfd4edeeda49d3e9331efff91bc517c6",
    ),
    "a text": (
        "3d471a430d0d607a341356af2674726e6a",
        "cdc9e1b00a56c928ed4fedcb730d9b5372",
        "3d471a430d0d607a341356af2674726e6a",
        "5b835b0471610b2d46962df162ab9363",
    ),
    "repeated member": (
        "6d7d35a9175236873983190e7ad5d7cf72",
        "6d7d35a9175236873983190e7ad5d7cf72",
        "6d7d35a9175236873983190e7ad5d7cf72",
        "ecfa44521c5f29501006821faee99495",
    ),
    "not JSON": (
        "8a3a054ebe578a73d69666bd270b980f72",
        "8a3a054ebe578a73d69666bd270b980f72",
        "8a3a054ebe578a73d69666bd270b980f72",
        "2f3a6c9bc580814b83fa265ea57f0876",
    ),
    "nothing": (
        "dafaefbc803767c146fa41308178819a72",
        "dafaefbc803767c146fa41308178819a72",
        "dafaefbc803767c146fa41308178819a72",
        "3214301e2bd1ee613de7523b9e1359c7",
    ),
}


def content(body: bytes) -> RequestContent:
    return RequestContent("/orders/7 \udcff", b"dry=1", "application/json", body, b"", ("7", "a:b"))


@pytest.mark.parametrize("name", BODIES)
def test_fingerprints_of_an_earlier_build_stay_equal(name: str) -> None:
    strategies = (canonical_json, raw_bytes, selected_fields("account", "a.x"))
    made = [fingerprint(content(BODIES[name]), strategy, key=KEY).hex() for strategy in strategies]
    made.append(earlier_fingerprint(content(BODIES[name]), canonical_json, key=KEY).hex())
    assert tuple(made) == FINGERPRINTS[name]


def by_length(request: RequestContent) -> bytes:
    return b"%d" % len(request.body)


class Named(NamedTuple):
    """A request whose names and locks are known."""

    route: Route
    naming: Naming = Naming()
    path: str = "/orders/7"
    body: bytes = BODIES["payment"]
    media_type: bytes = b"application/json; charset=utf-8"
    source: Mapping[str, Any] = {}


def route(template: str, *, mount: str = "", **changed: Any) -> Route:
    said: Settings = {"principal": single_principal, **changed}  # type: ignore[typeddict-item]
    found = routes_of({f"POST {template}": policy_of_settings(said)}).resolve(Request("POST", "/orders/7"))
    assert found is not None
    return replace(found, mount=mount)


CASES = {
    "plain": Named(route("/orders/7")),
    "parameter": Named(route("/orders/{id}")),
    "given operation": Named(route("/orders/{id}", operation="/orders/{order}")),
    "moved": Named(route("/orders/{id}", operation="place-order")),
    "mounted": Named(route("/orders/{id}", mount="/shop"), source={"root_path": "/shop"}),
    "mounted, path with its root": Named(
        route("/orders/{id}", mount="/shop"), path="/shop/orders/7", source={"root_path": "/shop"}
    ),
    "mounted, given operation": Named(
        route("/orders/{id}", mount="/shop", operation="place-order"), source={"root_path": "/shop"}
    ),
    "no earlier records": Named(route("/orders/{id}"), Naming(earlier_release=False, earlier_deploys=False)),
    "peppered": Named(route("/orders/{id}"), Naming(peppers=(b"p" * 32, b"q" * 32))),
    "raw": Named(route("/orders/{id}", fingerprint=raw_bytes)),
    "fields": Named(route("/orders/{id}", fingerprint=selected_fields("account"))),
    "custom": Named(route("/orders/{id}", fingerprint=by_length)),
    "named": Named(route("/orders/{id}", fingerprint=named_strategy("length", by_length))),
    "earlier strategy": Named(route("/orders/{id}", fingerprint_before=(raw_bytes,))),
    "form": Named(
        route("/orders/{id}"),
        body=b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--b--\r\n',
        media_type=b"multipart/form-data; boundary=b",
    ),
    "large": Named(route("/orders/{id}"), body=b"[" + b"1," * 10_001 + b"1]"),
}

#: By case: digest, fingerprint, operation, earlier digests, digest without the mount, whether mounts and payloads are
#: told apart, and the locks.
NAMES: Mapping[str, tuple[Any, ...]] = {
    "plain": (
        "37edfc350e2d90407c995e9ca61f53ed",
        "ab018c2fe829d1ffc4caa0a584009cef6a",
        "POST /orders/7",
        (),
        None,
        False,
        True,
        (-6124459880860757505, -2386516826773608166, 2057029994561876039),
    ),
    "parameter": (
        "c0bf0023b922aa327742720330e3a4c7",
        "c5a85e975656665f3498cba9b6ec21206a",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        True,
        (-4204006248068782497, 6481852975406800537, -6787299356056491115),
    ),
    "given operation": (
        "c0bf0023b922aa327742720330e3a4c7",
        "c5a85e975656665f3498cba9b6ec21206a",
        "POST /orders/{}",
        ("4af4f7d6d089ecd7cfd9c82a0f921a63", "989e154c68f18966b7cd42ad06412ada"),
        None,
        False,
        True,
        (-4204006248068782497, 6481852975406800537, -4296038068334478075, -5558354792835416955),
    ),
    "moved": (
        "8c765217522fb0bd12e4e83abb7ef60e",
        "de6134a106070ddcc14a999b3d3bc0936a",
        "POST place-order",
        ("989e154c68f18966b7cd42ad06412ada", "c0bf0023b922aa327742720330e3a4c7"),
        None,
        False,
        True,
        (-2422597258353111588, 6616811695975660479, -6787299356056491115, -4204006248068782497),
    ),
    "mounted": (
        "2a99d4e31770063ad664641145716711",
        "f040790816c4421b0e81568759e9b6e76a",
        "POST /shop/orders/{}",
        (),
        "989e154c68f18966b7cd42ad06412ada",
        False,
        True,
        (-1134774030448704997, -4985724199920054129, -6787299356056491115),
    ),
    "mounted, path with its root": (
        "2a99d4e31770063ad664641145716711",
        "f040790816c4421b0e81568759e9b6e76a",
        "POST /shop/orders/{}",
        (),
        "989e154c68f18966b7cd42ad06412ada",
        True,
        True,
        (-1134774030448704997, -4985724199920054129, -5758254522004470707),
    ),
    "mounted, given operation": (
        "8c765217522fb0bd12e4e83abb7ef60e",
        "e3358aa6d87e8b83006a1b22a8cec7156a",
        "POST place-order",
        ("2a99d4e31770063ad664641145716711",),
        "989e154c68f18966b7cd42ad06412ada",
        False,
        True,
        (-2074599604132869245, -8987574734748224336, -6787299356056491115, 9109763579874647837),
    ),
    "no earlier records": (
        "c0bf0023b922aa327742720330e3a4c7",
        "c5a85e975656665f3498cba9b6ec21206a",
        "POST /orders/{}",
        (),
        None,
        False,
        True,
        (-4204006248068782497, 6481852975406800537),
    ),
    "peppered": (
        "c0bf0023b922aa327742720330e3a4c7",
        "9fdb138dc7bd730d518ca7405b87f51a6a",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        True,
        (-4204006248068782497, 6481852975406800537, -6787299356056491115),
    ),
    "raw": (
        "c0bf0023b922aa327742720330e3a4c7",
        "59f42af0556e5e99a76bdaddfadf8bd672",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        True,
        (6481852975406800537, 8921259104474543412),
    ),
    "fields": (
        "c0bf0023b922aa327742720330e3a4c7",
        "a89e7142cbee32be6fce39a5d145b249666163636f756e74",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        True,
        (-6296470697314209090, 6481852975406800537, -140930200904581631),
    ),
    "custom": (
        "c0bf0023b922aa327742720330e3a4c7",
        "6fa584218857f5d6b95ba4b6076995ef63",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        True,
        (8044981588923512278, 6481852975406800537, -8001347214172216030),
    ),
    "named": (
        "c0bf0023b922aa327742720330e3a4c7",
        "6fa584218857f5d6b95ba4b6076995ef636c656e677468",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        True,
        (8044981588923512278, 6481852975406800537, -8001347214172216030),
    ),
    "earlier strategy": (
        "c0bf0023b922aa327742720330e3a4c7",
        "c5a85e975656665f3498cba9b6ec21206a",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        False,
        (-4204006248068782497, 6481852975406800537, -6787299356056491115),
    ),
    "form": (
        "c0bf0023b922aa327742720330e3a4c7",
        "156ed35b600c194b4a4eff47114af81e6d",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        True,
        (1544404111641549131, -8984354743349740295, -8298704672587766639),
    ),
    "large": (
        "c0bf0023b922aa327742720330e3a4c7",
        "11561dfe8393e520ca34d26c118a833972",
        "POST /orders/{}",
        ("989e154c68f18966b7cd42ad06412ada",),
        None,
        False,
        False,
        (1249218925608297760, -931313805513751263),
    ),
}


def ask(case: Named) -> Ask:
    request = Request("POST", case.path, b"dry=1", ((b"content-type", case.media_type),), case.source)
    return make_ask(request, case.route, case.naming, principal="acct\udcff", key="k-1", key_ms=None, body=case.body)


def names(made: Ask) -> tuple[Any, ...]:
    return (
        made.digest.hex(),
        made.fingerprint.hex(),
        made.operation,
        tuple(each.hex() for each in made.earlier),
        None if made.unmounted is None else made.unmounted.hex(),
        made.distinguishes_mounts,
        made.distinguishes_payloads,
        made.request_locks,
    )


@pytest.mark.parametrize("name", CASES)
def test_names_and_locks_of_an_earlier_build_stay_equal(name: str) -> None:
    assert names(ask(CASES[name])) == NAMES[name]


# --- the formula, written out as it was first written ---------------------------------------------------------

TEXTS = st.text(alphabet=st.characters(blacklist_categories=()), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
WRITTEN = json.JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_values_are_written_as_the_encoder_of_the_standard_library_writes_them(value: Any) -> None:
    assert module._encode(value) == WRITTEN.encode(value).encode("ascii")


def test_an_interpreter_without_that_c_writer_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("json.encoder.c_make_encoder", None)
    value: module.Json = {"b": [1, None, "é\u007f"], "a": {}}
    assert "".join(module._find_writer()(value, 0)) == WRITTEN.encode(value)


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.binary(max_size=8), st.binary(max_size=40), st.binary(min_size=16, max_size=64), st.booleans())
def test_a_hash_is_of_each_part_with_its_length(path: str, query: bytes, body: bytes, key: bytes, ours: bool) -> None:
    target, form = path.encode("utf-8", "surrogatepass"), b"r" + body
    strategy = raw_bytes if ours else named_strategy("ours", lambda request: b"r" + request.body)
    parts = (len(target), target, len(query), query, len(form), form)
    framed = (b"7:onefold%d:%b%d:%b%d:%b" if ours else b"6:custom%d:%b%d:%b%d:%b") % parts
    for make, version in ((fingerprint, b"onefold.asked.2"), (earlier_fingerprint, b"onefold.asked.1")):
        found = make(RequestContent(path, query, "", body), strategy, key=key)[:16]
        assert found == blake2b(framed, digest_size=16, key=key, person=version).digest()
