"""onefold: retry it as often as you like; it happens once.

The package's root imports nothing: a name brings its module along when it is first asked for. A client does not pay for
the server's side, nor a consumer's process for HTTP.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold import clients as clients
    from onefold import errors as errors
    from onefold import policies as policies
    from onefold import shedding as shedding
    from onefold import telemetry as telemetry
    from onefold._app import AsyncOnefold, Onefold
    from onefold._client.context import call, intent
    from onefold._client.retrying import Retrying, retrying
    from onefold._http.request import Request
    from onefold._http.route_policy import Policy, single_principal
    from onefold._idempotency.encryption import Keyring
    from onefold._inbox.handler_signature import Depends
    from onefold._kernel.deadlines import deadline, no_deadline
    from onefold._kernel.derive import derive
    from onefold._kernel.messages import Message
    from onefold._kernel.transaction import Transaction
    from onefold._kernel.write_results import Entered, Inserted, InsertOutcome, Transitioned, TransitionOutcome
    from onefold._policy.retry import RetryPolicy
    from onefold._steps.step_order import StepOptions
    from onefold._steps.steps import Steps
    from onefold.errors import OnefoldError

__all__ = [
    "AsyncOnefold",
    "Depends",
    "Entered",
    "InsertOutcome",
    "Inserted",
    "Keyring",
    "Message",
    "Onefold",
    "OnefoldError",
    "Policy",
    "Request",
    "RetryPolicy",
    "Retrying",
    "StepOptions",
    "Steps",
    "Transaction",
    "TransitionOutcome",
    "Transitioned",
    "call",
    "deadline",
    "derive",
    "intent",
    "no_deadline",
    "retrying",
    "single_principal",
]

_MODULE_OF = {
    "AsyncOnefold": "_app",
    "Depends": "_inbox.handler_signature",
    "Entered": "_kernel.write_results",
    "InsertOutcome": "_kernel.write_results",
    "Inserted": "_kernel.write_results",
    "Keyring": "_idempotency.encryption",
    "Message": "_kernel.messages",
    "Onefold": "_app",
    "OnefoldError": "errors",
    "Policy": "_http.route_policy",
    "Request": "_http.request",
    "RetryPolicy": "_policy.retry",
    "Retrying": "_client.retrying",
    "StepOptions": "_steps.step_order",
    "Steps": "_steps.steps",
    "Transaction": "_kernel.transaction",
    "TransitionOutcome": "_kernel.write_results",
    "Transitioned": "_kernel.write_results",
    "call": "_client.context",
    "deadline": "_kernel.deadlines",
    "derive": "_kernel.derive",
    "intent": "_client.context",
    "no_deadline": "_kernel.deadlines",
    "retrying": "_client.retrying",
    "single_principal": "_http.route_policy",
}

#: Those of the public modules that need no extra: `import onefold; onefold.clients.options(...)`.
_MODULES = ("clients", "errors", "policies", "shedding", "telemetry")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("onefold")
    if name not in _MODULE_OF and name not in _MODULES:
        raise AttributeError(f"module 'onefold' has no attribute {name!r}")
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"onefold.{name}")
    value = globals()[name] = getattr(import_module(f"onefold.{_MODULE_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES, "__version__"})
