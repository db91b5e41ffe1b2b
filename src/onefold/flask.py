"""Flask: the request's transaction, condition and SQLAlchemy session."""

from onefold._http.condition_errors import ConditionFailed
from onefold._http.flask_views import current_condition, current_session, current_transaction, stored_principal
from onefold._steps.step_order import StepOptions
from onefold._steps.steps import Steps

__all__ = [
    "ConditionFailed",
    "StepOptions",
    "Steps",
    "current_condition",
    "current_session",
    "current_transaction",
    "stored_principal",
]
