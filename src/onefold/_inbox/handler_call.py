"""One call of a handler: its arguments are made, it is called, and what its dependencies opened is closed.

Theory of operation. Dependencies are called first, inside the transaction, where the handler runs: on its thread or on
the loop. What one of them yields stays open until the transaction has ended, so that it may serve what happens at the
end, and so that what follows its `yield` knows how it ended: a failure is raised there.

There is one text for both colours: for a plain `def` nothing in it is awaited, and it runs through in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeAlias

from onefold._inbox.consumer import Consumer
from onefold._inbox.handler_signature import Needed, Parameter, Signature
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold.errors import OnefoldError, ProgrammerError


class NotCommitted(OnefoldError):
    """Raised in a dependency at its `yield` where the handler returned, and its transaction was not committed."""


class Invocation:
    """What one call is made from, and what was opened for it."""

    __slots__ = ("_consumer", "_made", "_session", "_stack", "_steps", "_tx", "error", "messages")

    def __init__(
        self,
        consumer: Consumer,
        messages: list[Message],
        tx: OwnedTransaction[Any] | None = None,
        session: Any = None,
        steps: Any = None,
    ) -> None:
        self.messages = messages
        #: Why it failed, if it did.
        self.error: Exception | None = None
        self._consumer = consumer
        self._tx = tx
        self._session = session
        self._steps = steps
        self._made: dict[int, Any] = {}
        self._stack = AsyncExitStack()

    def run(self) -> Any:
        """Call the handler; its answer, to be awaited where it is async."""
        return self._perform(self._call(self._consumer.signature))

    def close(self, kept: bool | None) -> Any:
        """Close what was opened, the last first. `kept`: the transaction was committed."""
        error = self.error
        if error is None and not kept:
            error = NotCommitted("the handler returned, but its transaction was not committed, or nothing is known")
        return self._perform(self._close(error))

    async def _close(self, error: Exception | None) -> None:
        if error is None:
            await self._stack.__aexit__(None, None, None)
            return
        trace = error.__traceback__  # of the handler: what raises it once more at a `yield` must not take its place
        try:
            await self._stack.__aexit__(type(error), error, trace)
        finally:
            error.__traceback__ = trace

    def _perform(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self._consumer.is_async:
            return work
        try:
            work.send(None)
        except StopIteration as end:
            return end.value
        work.close()
        raise ProgrammerError("a plain handler has awaited something")

    async def _call(self, signature: Signature) -> Any:
        by_place, by_name = [], {}
        for parameter in signature.parameters:
            value = await self._value(parameter)
            if parameter.name is None:
                by_place.append(value)
            else:
                by_name[parameter.name] = value
        match signature.kind:
            case "plain":
                return signature.function(*by_place, **by_name)
            case "async":
                return await signature.function(*by_place, **by_name)
            case "generator":
                return self._stack.enter_context(contextmanager(signature.function)(*by_place, **by_name))
            case "async generator":
                opening = asynccontextmanager(signature.function)(*by_place, **by_name)
                return await self._stack.enter_async_context(opening)

    async def _value(self, parameter: Parameter) -> Any:
        match parameter.value:
            case "message":
                return self._one_or_all(self.messages)
            case "tx":
                return self._tx
            case "Session" | "AsyncSession":
                return self._session
            case "steps":
                return self._steps
            case Needed(signature, cached):
                name = id(signature.function)
                if not cached or name not in self._made:
                    self._made[name] = await self._call(signature)
                return self._made[name]
            case payload:
                return self._one_or_all([payload.read(message.data) for message in self.messages])

    def _one_or_all(self, values: list[Any]) -> Any:
        return values if self._consumer.batch > 1 else values[0]


#: Does a part of an invocation (its run, its closing) where its handler runs; to be awaited where it answers so.
Performs: TypeAlias = Callable[[Invocation, Callable[[], Any]], Any]


def perform_here(_: Invocation, work: Callable[[], Any]) -> Any:
    return work()


class InvocationCloser:
    """Joins a transaction, to close an invocation when that has ended, however it did."""

    __slots__ = ("_perform", "invocation")

    def __init__(self, invocation: Invocation, perform: Performs) -> None:
        self.invocation = invocation
        self._perform = perform

    def write(self) -> None:
        """It holds nothing back."""

    def begin_part(self) -> None:
        """A savepoint is nothing to it."""

    def end_part(self, part: None, *, keep: bool) -> None:
        """Nor is its end."""

    def before_end(self, keep_rows: bool) -> None:
        """Dependencies stay open until the transaction has ended."""

    def after_end(self, kept: bool | None) -> Any:
        return self._perform(self.invocation, partial(self.invocation.close, kept))
