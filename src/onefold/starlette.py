"""Starlette: the request's transaction."""

from onefold._http.starlette import transaction_of
from onefold._steps.points import StepOptions
from onefold._steps.steps import Steps

__all__ = [
    "StepOptions",
    "Steps",
    "transaction_of",
]
