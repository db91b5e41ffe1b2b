"""The transaction of the handler that this task or thread is inside of."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from onefold._kernel.owned_transaction import OwnedTransaction

handling: ContextVar[OwnedTransaction[Any] | None] = ContextVar("onefold_handling", default=None)
