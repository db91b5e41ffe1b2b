"""Starlette: the request's transaction."""

from onefold._http.starlette import stored_principal, transaction_of
from onefold._steps.step_order import StepOptions
from onefold._steps.steps import Steps

__all__ = [
    "StepOptions",
    "Steps",
    "stored_principal",
    "transaction_of",
]
