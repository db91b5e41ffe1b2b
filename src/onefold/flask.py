"""Flask: the request's transaction and SQLAlchemy session."""

from onefold._http.flask import current_session, current_transaction, stored_principal
from onefold._steps.step_order import StepOptions
from onefold._steps.steps import Steps

__all__ = [
    "StepOptions",
    "Steps",
    "current_session",
    "current_transaction",
    "stored_principal",
]
