"""FastAPI: the request's transaction, condition, principal and SQLAlchemy session as dependencies."""

from typing import TYPE_CHECKING, Any

from onefold._http.condition_errors import ConditionFailed
from onefold._http.fastapi_dependencies import Condition, Tx, authorize_from, principal_from
from onefold._http.starlette_routes import stored_principal
from onefold._steps.step_order import StepOptions
from onefold._steps.steps import Steps

if TYPE_CHECKING:
    from onefold._http.fastapi_sessions import AsyncRequestSession, AsyncSessionTx, RequestSession, SessionTx

__all__ = [
    "AsyncRequestSession",
    "AsyncSessionTx",
    "Condition",
    "ConditionFailed",
    "RequestSession",
    "SessionTx",
    "StepOptions",
    "Steps",
    "Tx",
    "authorize_from",
    "principal_from",
    "stored_principal",
]


def __getattr__(name: str) -> Any:
    """The sessions, when they are asked for: they need SQLAlchemy."""
    if name not in __all__:
        raise AttributeError(f"module 'onefold.fastapi' has no attribute {name!r}")
    from onefold._http import fastapi_sessions

    return getattr(fastapi_sessions, name)
