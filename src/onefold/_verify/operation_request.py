"""The request of an OpenAPI operation: its method, path, parameters, and a payload made of the schema.

Examples of the document are taken first; where there are none, values are made that fit the schema's types and bounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from onefold._verify.http_port import HeaderLines
from onefold.errors import ConfigurationError

_METHODS: Final = ("post", "put", "patch", "delete")
_DEPTH_MAX: Final = 20
#: Headers that the user or the prober sets.
_SET_ELSEWHERE: Final = frozenset({"idempotency-key", "authorization", "content-type", "accept"})
_BY_FORMAT: Final = {
    "email": "{{unique}}@example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "date": "2030-01-31",
    "date-time": "2030-01-31T12:00:00Z",
    "time": "12:00:00Z",
    "uri": "https://example.com/{{unique}}",
    "ipv4": "192.0.2.1",
    "byte": "AAAA",
}
#: `{{unique}}` in its longest form.
_UNIQUE_LENGTH: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationRequest:
    """The request of an operation."""

    method: str
    path: str
    """With its parameters, and the query."""
    headers: HeaderLines
    template: str | None


def read_operation(text: str, operation: str) -> OperationRequest:
    """The operation with this operationId, or written as 'POST /orders'. Raises ConfigurationError."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"the OpenAPI document is not JSON ({error}): convert YAML to JSON first") from error
    if not isinstance(document, dict) or not isinstance(document.get("paths"), dict):
        raise ConfigurationError("the OpenAPI document has no paths: is it one?")
    names_found = []
    for path, item in document["paths"].items():
        for method in _METHODS:
            definition = item.get(method) if isinstance(item, dict) else None
            if isinstance(definition, dict):
                names = (f"{method.upper()} {path}", str(definition.get("operationId", "")))
                if operation in names:
                    parameters = [*item.get("parameters", ()), *definition.get("parameters", ())]
                    return _OperationReader(document).request(method.upper(), path, definition, parameters)
                names_found.append(names[1] or names[0])
    raise ConfigurationError(
        f"the OpenAPI document has no operation {operation!r}; it has: {', '.join(names_found) or 'none'}"
    )


class _OperationReader:
    """Reads one document; references lead to other parts of it."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def request(
        self, method: str, path: str, operation: Mapping[str, Any], parameters: list[Mapping[str, Any]]
    ) -> OperationRequest:
        query, headers = [], []
        for reference in parameters:
            parameter = self._resolve(reference)
            name, place = str(parameter.get("name")), parameter.get("in")
            if place != "path" and (not parameter.get("required") or name.lower() in _SET_ELSEWHERE):
                continue
            value = self._parameter_text(parameter)
            if place == "path":
                path = path.replace(f"{{{name}}}", quote(value, safe=""))
            elif place == "query":
                query.append((name, value))
            elif place == "header":
                headers.append((name, value.encode()))
        servers: list[Mapping[str, str]] = self._document.get("servers") or [{}]
        base = urlsplit(servers[0].get("url", "")).path.rstrip("/")
        return OperationRequest(
            method=method,
            path=base + path + (f"?{urlencode(query)}" if query else ""),
            headers=tuple(headers),
            template=self._template(operation),
        )

    def _parameter_text(self, parameter: Mapping[str, Any]) -> str:
        value = parameter.get("example", self._sample(parameter.get("schema", {}), 0))
        return str(value).replace("{{unique}}", "verify")

    def _template(self, operation: Mapping[str, Any]) -> str | None:
        content = self._resolve(operation.get("requestBody", {})).get("content", {})
        if not content:
            return None
        kind = next((kind for kind in content if kind.partition(";")[0].endswith("json")), None)
        if kind is None:
            raise ConfigurationError(f"the operation takes {', '.join(content)}, and no JSON: only JSON is sent")
        media = content[kind]
        if "example" in media:
            return json.dumps(media["example"])
        for example in (media.get("examples") or {}).values():
            return json.dumps(self._resolve(example).get("value"))
        return json.dumps(self._sample(media.get("schema", {}), 0))

    def _resolve(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(_DEPTH_MAX):
            reference = value.get("$ref")
            if reference is None:
                return value
            node: Any = self._document
            for part in str(reference).removeprefix("#/").split("/"):
                name = part.replace("~1", "/").replace("~0", "~")
                if not isinstance(node, dict) or name not in node:
                    raise ConfigurationError(f"the OpenAPI document refers to {reference!r}, which is not in it")
                node = node[name]
            value = node
        raise ConfigurationError("the OpenAPI document has references that lead in a circle")

    def _sample(self, reference: Any, depth: int) -> Any:
        """A value of this schema."""
        schema = self._resolve(reference) if isinstance(reference, dict) else {}
        if depth > _DEPTH_MAX:
            return None
        for name in ("const", "example", "default"):
            if name in schema:
                return schema[name]
        for name in ("examples", "enum"):
            if isinstance(schema.get(name), list) and schema[name]:
                return schema[name][0]
        for name in ("oneOf", "anyOf"):
            if schema.get(name):
                return self._sample(schema[name][0], depth + 1)
        if schema.get("allOf"):
            return self._merged([self._sample(part, depth + 1) for part in schema["allOf"]])
        return self._of_type(schema, depth)

    @staticmethod
    def _merged(parts: list[Any]) -> Any:
        objects = [part for part in parts if isinstance(part, dict)]
        return {name: value for part in objects for name, value in part.items()} if objects else parts[0]

    def _of_type(self, schema: Mapping[str, Any], depth: int) -> Any:
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        kind = next((one for one in kinds if one != "null"), "null") if isinstance(kinds, list) else kinds
        match kind:
            case "object":
                properties = schema.get("properties", {})
                required = schema.get("required", ())
                return {name: self._sample(part, depth + 1) for name, part in properties.items() if name in required}
            case "array":
                return [self._sample(schema.get("items", {}), depth + 1)] * max(1, schema.get("minItems", 1))
            case "integer" | "number":
                return _number(schema, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
            case _:
                return _text(schema)


def _number(schema: Mapping[str, Any], *, whole: bool) -> Any:
    least = schema.get("minimum", 1)
    above = schema.get("exclusiveMinimum")
    if isinstance(above, int | float) and not isinstance(above, bool):
        least = max(least, above + 1)
    elif above is True:
        least += 1
    value = min(max(least, 1), schema.get("maximum", max(least, 1)))
    step = schema.get("multipleOf")
    if step:
        value = -(-value // step) * step
    return int(value) if whole else value


def _text(schema: Mapping[str, Any]) -> str:
    if (sample := _BY_FORMAT.get(str(schema.get("format")))) is not None:
        return sample
    if "pattern" in schema:
        raise ConfigurationError(
            f"the schema wants a text that matches {schema['pattern']!r}: give it an example, or give --body"
        )
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", _UNIQUE_LENGTH))
    if most < _UNIQUE_LENGTH:
        return "x" * max(1, least)
    return "{{unique}}" + "x" * max(0, least - len("{{unique}}"))
