"""AsyncAPI documents, read by another implementation of the specification, which refuses fields that are not in it."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of pydantic's, about a field of the specification that is named schema
    _DOCUMENT: Any = import_module("asyncapi3.models.asyncapi").AsyncAPI3


def read(document: dict[str, Any]) -> None:
    """Raises pydantic's ValidationError."""
    _DOCUMENT.model_validate(document)
