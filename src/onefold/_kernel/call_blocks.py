"""The block a call is made in, which holds its one key. Clients read it, and what stands around a call sets it: the
blocks of `onefold.call()` and `onefold.intent()`, and the steps of a saga.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token

from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import new_id
from onefold.errors import IntentReused


class Block:
    """One call. Its key is kept in memory, in the journal under the name of its intent, or it is made again from a name
    that is durable elsewhere. `name` is what a refusal calls the block."""

    __slots__ = ("_fingerprint", "_target", "_way_out", "intent", "key", "name", "used")

    def __init__(
        self,
        intent: str | None = None,
        *,
        key: str | None = None,
        name: str = "onefold.call()",
        way_out: str = "give it a block of its own",
    ) -> None:
        self.intent = intent
        self.key = new_id(wall_ms()) if key is None else key
        self.name = name
        self.used = False
        self._fingerprint: bytes | None = None
        self._target = ""
        self._way_out = way_out

    def bind(self, fingerprint: bytes, target: str) -> None:
        """This request is the block's call, or a repetition of it."""
        if self._fingerprint is None:
            self._fingerprint, self._target = fingerprint, target
        elif self._fingerprint != fingerprint:
            same = " (the method and the address are the same, so the query or the body differs)"
            raise IntentReused(
                f"the block {self.name} has sent {self._target} under its key, and {target} is another call"
                f"{same if self._target == target else ''}: {self._way_out}",
                key=self.key,
            )


_block: ContextVar[Block | None] = ContextVar("onefold.block", default=None)

#: The block we are in, or None.
current_block: Callable[[], Block | None] = _block.get

#: Begin a block, and end it by what this gave.
enter: Callable[[Block | None], Token[Block | None]] = _block.set
leave: Callable[[Token[Block | None]], None] = _block.reset
