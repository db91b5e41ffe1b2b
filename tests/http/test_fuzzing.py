"""A fuzzer that believes the OpenAPI document: what the document calls valid is not refused, and nothing is a 5xx."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import hypothesis
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import strategies as st
from pydantic import BaseModel

from onefold import Onefold
from onefold._http.idempotency_key import KeyFault, key_schema, parse_key
from onefold._http.openapi import describe

#: How many requests are tried: enough for the control to be found many times over.
FEW, MANY = 50, 500

BOUNDED = hypothesis.settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # what is found need not be small
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
)

#: What a valid request may be told all the same, and where the document says so.
TIMELY = ("is older than", "dated more than a day ahead")


class Order(BaseModel):
    item: str
    amount: int = 1


@pytest.fixture
def once(sqlite_path: Path) -> Iterator[Onefold]:
    # Each request has a principal of its own: no key is used twice, so that each valid request has to run.
    numbers = itertools.count()
    found = Onefold(sqlite_path, principal=lambda: str(next(numbers)))
    yield found
    found.close()


def shop(once: Onefold) -> FastAPI:
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent(required=True)
    def buy(order: Order) -> Order:
        return order

    @app.post("/optional", status_code=201)
    @once.idempotent()
    def maybe(order: Order) -> Order:
        return order

    @app.post("/strict", status_code=201)
    @once.idempotent(required=True, strict=True)
    def strict(order: Order) -> Order:
        return order

    @app.post("/dated", status_code=201)
    @once.idempotent(required=True, expiry="refuse")
    def dated(order: Order) -> Order:
        return order

    once.install(app)
    return app


def fuzz(app: FastAPI, path: str, *, valid: bool = True, examples: int = FEW) -> int:
    """How many valid requests ran. Fails on the first that was refused, and on a 5xx."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app)
    mode = schemathesis.GenerationMode.POSITIVE if valid else schemathesis.GenerationMode.NEGATIVE
    cases = cast("st.SearchStrategy[Any]", schema[path]["POST"].as_strategy(generation_mode=mode))
    ran = 0

    @hypothesis.settings(BOUNDED, max_examples=examples)
    @hypothesis.given(case=cases)
    def call(case: Any) -> None:
        nonlocal ran
        answer = case.call()
        assert answer.status_code < 500, answer.text
        if valid and not (answer.status_code in (400, 410) and any(reason in answer.text for reason in TIMELY)):
            assert answer.status_code == 201, (case.headers, answer.text)
            ran += 1

    call()
    return ran


in_full = pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])


@in_full
@pytest.mark.parametrize("path", ["/orders", "/optional", "/strict", "/dated"])
def test_no_request_that_the_document_calls_valid_is_refused(path: str, examples: int, once: Onefold) -> None:
    least = 0 if path == "/dated" else examples * 2 / 3  # a UUIDv7 by chance is hardly ever of today
    assert fuzz(shop(once), path, examples=examples) >= least


@in_full
@pytest.mark.parametrize("path", ["/orders", "/dated"])
def test_no_request_that_the_document_calls_invalid_is_a_failure_of_ours(
    path: str, examples: int, once: Onefold
) -> None:
    fuzz(shop(once), path, valid=False, examples=examples)


@pytest.mark.parametrize("path", ["/orders", "/dated"])
def test_the_fuzzer_finds_a_pattern_that_is_too_wide(path: str, once: Onefold) -> None:
    app = shop(once)
    [header] = app.openapi()["paths"][path]["post"]["parameters"]
    header["schema"] = {"type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[!-~]+$"}
    with pytest.raises(AssertionError, match="key-malformed"):
        fuzz(app, path)


def test_the_document_says_whether_a_key_is_required(once: Onefold) -> None:
    paths = shop(once).openapi()["paths"]
    required = {path: found["post"]["parameters"][0]["required"] for path, found in paths.items()}
    assert required == {"/orders": True, "/optional": False, "/strict": True, "/dated": True}


_CHARACTERS = st.text(alphabet=st.sampled_from('"\\ ,;:?@%(-0aZ~\t\x7f!#[]'), max_size=12)
_LONG = st.integers(250, 260).map("k".__mul__)
_VALUES = st.one_of(_CHARACTERS, _CHARACTERS.map('"{}"'.format), _LONG, _LONG.map('"{}"'.format))


@pytest.mark.parametrize("strict", [False, True])
@hypothesis.settings(BOUNDED, max_examples=1000)
@hypothesis.given(value=_VALUES)
def test_the_pattern_is_what_is_read(strict: bool, value: str) -> None:
    schema = key_schema(strict=strict, dated=False)
    matches = bool(re.fullmatch(str(schema["pattern"])[1:-1], value))
    assert not matches or int(schema["minLength"]) <= len(value) <= int(schema["maxLength"])
    try:
        parse_key([value.encode()], strict=strict)
        read = True
    except KeyFault:
        read = False
    around = value != value.strip(" \t") or re.match(r'"(?:[^"\\]|\\.)*";', value)  # read, and left out of the pattern
    assert matches == read or (around and read)


def test_an_author_who_describes_the_header_is_not_overruled(once: Onefold) -> None:
    mine = {"name": "idempotency-key", "in": "header", "schema": {"type": "string"}}
    document: dict[str, Any] = {"paths": {"/orders": {"post": {"parameters": [mine], "responses": {}}}}}
    describe(document, {"POST /orders": once.policy()})
    assert document["paths"]["/orders"]["post"]["parameters"] == [mine]
