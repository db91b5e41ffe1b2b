"""Payloads: templates, their variation, and operations of OpenAPI documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onefold._verify.commands import GroundTruth
from onefold._verify.findings import UnusableTarget
from onefold._verify.operation_request import read_operation
from onefold._verify.payloads import Payloads
from onefold.errors import ConfigurationError


def test_each_payload_of_a_template_with_marks_is_another_one() -> None:
    payloads = Payloads('{"id": "{{unique}}", "n": {{n}}, "run": "{{run}}"}', run="r")
    first, second = json.loads(payloads.fresh()), json.loads(payloads.fresh())
    assert first == {"id": "r-1", "n": 1, "run": "r"}
    assert second == {"id": "r-2", "n": 2, "run": "r"}
    assert json.loads(payloads.other(b"") or b"")["n"] == 3


@pytest.mark.parametrize(
    ("template", "varied"),
    [
        ('{"item": "book", "amount": 5, "more": 1}', {"item": "book", "amount": 6, "more": 1}),
        ('{"flag": true, "items": [{"name": "book"}]}', {"flag": True, "items": [{"name": "bookx"}]}),
        ('{"flag": true, "nothing": null}', None),
        ("{}", None),
        (None, None),
    ],
)
def test_a_payload_without_marks_is_varied_in_one_place(template: str | None, varied: object) -> None:
    payloads = Payloads(template, run="r")
    body = payloads.fresh()
    assert body == payloads.fresh()
    other = payloads.other(body)
    assert (None if other is None else json.loads(other)) == varied


def test_another_payload_that_is_the_same_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is the payload itself"):
        Payloads('{"a": 1}', run="r", other='{"a": 1}')


SCHEMAS: dict[str, Any] = {
    "Order": {
        "allOf": [
            {"$ref": "#/components/schemas/Named"},
            {
                "type": "object",
                "required": ["amount", "kind", "lines", "mail", "note", "code", "paid", "price"],
                "properties": {
                    "amount": {"type": "integer", "minimum": 100},
                    "kind": {"enum": ["gift", "own"]},
                    "lines": {"type": "array", "minItems": 2, "items": {"type": "number", "exclusiveMinimum": 0}},
                    "mail": {"type": "string", "format": "email"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "code": {"type": "string", "maxLength": 3},
                    "paid": {"type": ["null", "boolean"]},
                    "price": {"type": "integer", "maximum": 0, "minimum": -5},
                    "left": {"type": "string"},
                },
            },
        ]
    },
    "Named": {"properties": {"name": {"type": "string", "example": "Ann"}}, "required": ["name"]},
}


def document(schema: Any, **more: Any) -> str:
    operation = {"operationId": "place", "requestBody": {"content": {"application/json": schema}}, **more}
    paths = {"/shops/{shop}/orders": {"post": operation, "get": {"operationId": "list"}}}
    return json.dumps({"servers": [{"url": "https://x/v1/"}], "paths": paths, "components": {"schemas": SCHEMAS}})


def test_an_operation_gets_values_that_fit_its_schema() -> None:
    parameters = [
        {"name": "shop", "in": "path", "required": True, "schema": {"type": "integer"}},
        {"name": "dry", "in": "query", "required": True, "schema": {"type": "boolean"}},
        {"name": "page", "in": "query", "schema": {"type": "integer"}},
        {"name": "correlation-id", "in": "header", "required": True, "example": "c1"},
        {"name": "Idempotency-Key", "in": "header", "required": True, "schema": {"type": "string"}},
    ]
    text = document({"schema": {"$ref": "#/components/schemas/Order"}}, parameters=parameters)
    found = read_operation(text, "place")
    assert found == read_operation(text, "POST /shops/{shop}/orders")
    assert (found.method, found.path) == ("POST", "/v1/shops/1/orders?dry=True")
    assert found.headers == (("correlation-id", b"c1"),)
    assert json.loads(found.template or "") == {
        "name": "Ann",
        "amount": 100,
        "kind": "gift",
        "lines": [1, 1],
        "mail": "{{unique}}@example.com",
        "note": "{{unique}}",
        "code": "x",
        "paid": True,
        "price": 0,
    }


def test_examples_of_an_operation_go_first() -> None:
    assert read_operation(document({"example": {"a": 1}}), "place").template == '{"a": 1}'
    assert read_operation(document({"examples": {"one": {"value": {"a": 2}}}}), "place").template == '{"a": 2}'


@pytest.mark.parametrize(
    ("text", "operation", "said"),
    [
        ("openapi: 3.1.0", "place", "convert YAML to JSON"),
        ("{}", "place", "has no paths"),
        (document({}), "list", "it has: place"),
        (document({"schema": {"$ref": "#/components/schemas/None"}}), "place", "which is not in it"),
        (document({"schema": {"type": "string", "pattern": "^a$"}}), "place", "give it an example"),
    ],
)
def test_a_document_that_does_not_help_says_why(text: str, operation: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        read_operation(text, operation)


@pytest.mark.parametrize("printed", ["7", " count \n-------\n     7\n(1 row)\n"])
def test_a_count_is_the_number_on_a_line_of_its_own(printed: str) -> None:
    command = GroundTruth(f"printf '{printed}'", "--count", shell=False, timeout_s=60)
    assert command.count({"run": "r"}) == 7


@pytest.mark.parametrize("printed", ["", "1\n2\n", "seven"])
def test_a_count_that_is_no_number_is_told(printed: str) -> None:
    with pytest.raises(UnusableTarget, match="must print one number"):
        GroundTruth(f"printf '{printed}'", "--count", shell=False, timeout_s=60).count({})


def test_a_command_that_takes_too_long_is_told_with_what_gives_it_more_time() -> None:
    with pytest.raises(UnusableTarget, match=r"--count did not end within 0\.1 s; --timeout gives it more$"):
        GroundTruth("sleep 600", "--count", shell=False, timeout_s=0.1).run({})


def test_marks_of_a_command_are_filled_in_after_it_was_split() -> None:
    command = GroundTruth("printf '%s|' {{id}} '{{run}}'", "--publish", shell=False, timeout_s=60)
    assert command.run({"run": "r", "id": "a b; c"}) == "a b; c|r|"
