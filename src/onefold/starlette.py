"""Starlette: the request's transaction and condition."""

from onefold._http.condition_errors import ConditionFailed
from onefold._http.starlette_routes import condition_of, stored_principal, transaction_of
from onefold._steps.step_order import StepOptions
from onefold._steps.steps import Steps

__all__ = [
    "ConditionFailed",
    "StepOptions",
    "Steps",
    "condition_of",
    "stored_principal",
    "transaction_of",
]
