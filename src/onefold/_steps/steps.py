"""The interface of a work for its user: phases, calls, the end, and the keys of its steps.

`await` belongs to AsyncOnefold, whose functions are async; with Onefold both are plain.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Final, Never, ParamSpec, TypeAlias, TypeVar

from onefold._kernel.call_blocks import Block, enter, leave
from onefold._kernel.current_transaction import is_in_open_block
from onefold._kernel.derive import derive
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, is_async
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.results import result_type_of
from onefold._kernel.runners import run, run_async
from onefold._kernel.transaction import Transaction
from onefold._steps.attempt_steps import AttemptSteps
from onefold._steps.step_order import StepOptions, step_options
from onefold._steps.work_ports import NewTransaction
from onefold.errors import ConfigurationError, WorkMisused

P = ParamSpec("P")
R = TypeVar("R")

#: The flow of a step, which begins its transaction by what it is given.
MakeStep: TypeAlias = Callable[[NewTransaction], Flow[Any]]

#: Keeps the keys of steps apart from what applications derive. It never changes.
_DERIVED: Final = "onefold.step"

NOT_INJECTED: Final = (
    "a parameter annotated with Steps is given by onefold: mark the handler with @once.idempotent(required=True), "
    "directly above the function and below the route's own decorator"
)


class Steps:
    """The steps of one work. What is recorded is never run again: after a crash, or when a request is retried, each
    step that was done before answers from its record, and the work goes on behind it."""

    __slots__ = ("_asynchronous", "_attempt", "_executor", "_perform")

    def __init__(
        self,
        attempt: AttemptSteps,
        executor: ThreadExecutor[Any] | TaskExecutor[Any],
        perform: Callable[[MakeStep], Any],
        *,
        asynchronous: bool,
    ) -> None:
        """Made by onefold. `attempt` has the records; `executor` leads to the database that `perform` does a step on;
        `asynchronous`: the steps are awaited."""
        self._attempt = attempt
        self._executor = executor
        self._perform = perform
        self._asynchronous = asynchronous

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Never:
        """Called by FastAPI for a parameter that it would read from the request."""
        raise ConfigurationError(NOT_INJECTED)

    def phase(
        self,
        step: str | StepOptions,
        function: Callable[Concatenate[Transaction[Any], P], R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """What `function(tx, *args, **kwargs)` returns, in a transaction of its own: its rows, its events and the
        record of its result are committed together, before this returns."""
        options = step_options(step)
        self._check(f"phase {options.name!r}", function)
        in_transaction = functools.partial(_call_with_tx, f"phase {options.name!r}", function, args, kwargs)
        returns = _result_type(options, function)
        answer: R = self._begin(lambda begin: self._attempt.phase(options, in_transaction, returns, begin))
        return answer

    def call(self, step: str | StepOptions, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """What `function(*args, **kwargs)` returns, which calls another service. No transaction is open meanwhile; the
        result is recorded when it returns. onefold's clients send the step's key by themselves, others take
        `derive(step)`: a call that is made again after a crash has the same key."""
        options = step_options(step)
        self._check(f"call {options.name!r}", function)
        self._check_key(options)
        block = Block(
            key=self.derive(options), name=f"of step {options.name!r}",
            way_out="make it a call of its own, work.call('another name', ...)",
        )  # fmt: skip
        under_key = _await_under if self._asynchronous else _call_under
        keyed = functools.partial(under_key, block, functools.partial(function, *args, **kwargs))
        answer: R = self._begin(lambda _: self._attempt.call(options, keyed, _result_type(options, function)))
        return answer

    def finish(
        self, function: Callable[Concatenate[Transaction[Any], P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """What `function(tx, *args, **kwargs)` returns, in the transaction that ends the work: with the stored answer
        of a request, the ledger row of a message, the end of `once.work(...)`. The last step, and at most one."""
        self._check("finish", function)
        in_transaction = functools.partial(_call_with_tx, "finish", function, args, kwargs)
        returns = result_type_of(function)
        answer: R = self._begin(lambda begin: self._attempt.finish(in_transaction, returns, begin))
        return answer

    def derive(self, step: str | StepOptions) -> str:
        """The key of a step: the same in every attempt at this work, for services that take an idempotency key. Of a
        step that was renamed it is given the `StepOptions`, which know the name that the key was first derived from."""
        if isinstance(step, str):
            self._attempt.derived.add(step)
        return derive(_DERIVED, self._attempt.digest, step_options(step).key_name)

    def _begin(self, make: MakeStep) -> Any:
        self._attempt.guard.unbegun += 1
        return self._perform(make)

    def _check_key(self, options: StepOptions) -> None:
        if options.formerly and options.name in self._attempt.derived:
            raise WorkMisused(
                f"work.derive({options.name!r}) is not the key of call {options.name!r}, which has formerly="
                f"{options.formerly!r}: a work that was begun before would make the call again under another key. "
                "Derive it from the same StepOptions that the call is given"
            )

    def _check(self, what: str, function: object) -> None:
        if not callable(function):
            raise WorkMisused(
                f"{what} was given {function!r:.80}, which is not a function. Hand over the function and its arguments "
                "one by one, as in work.call('charge', charge_card, ride), and do not call it"
            )
        if is_in_open_block(self._executor):
            raise WorkMisused(_IN_BLOCK.format(what=what, work=self._attempt.operation))
        if is_async(function) is not self._asynchronous:
            raise WorkMisused(_WRONG_COLOUR[self._asynchronous].format(what=what, name=_name_of(function)))


# Each step has an executor of its own: one that outlives its request, in a task or on a thread that is not waited for,
# has its connection for itself. The end of the request can neither commit nor break an unfinished step.


def on_thread(
    database: ThreadExecutor[Any],
    new_transaction: Callable[[ThreadExecutor[Any]], OwnedTransaction[Any]],
    make: MakeStep,
) -> Any:
    """Perform a step on this thread."""
    executor = database.anew()
    return run(make(functools.partial(new_transaction, executor)), executor)


async def on_loop(
    database: TaskExecutor[Any],
    new_transaction: Callable[[TaskExecutor[Any]], OwnedTransaction[Any]],
    make: MakeStep,
) -> Any:
    """Perform a step when it is awaited."""
    executor = database.anew()
    return await run_async(make(functools.partial(new_transaction, executor)), executor)


_IN_BLOCK: Final = (
    "{what} of {work} was called inside an open once.transaction() or once.handling(...) block, and nothing of it "
    "was run. A step commits by itself: it would be kept although the block fails, or wait for what the block has "
    "locked. End the block before the step, or write its rows in the function of a work.phase(...), by the tx that it "
    "is given"
)

_WRONG_COLOUR: Final = {
    True: "{what} was given {name}, which is not an async function: under AsyncOnefold it would stop every other "
    "request meanwhile. Write `async def`; for a call that blocks, functools.partial(asyncio.to_thread, {name})",
    False: "{what} was given {name}, an async function, and Onefold is for threads: write a plain def, or use "
    "AsyncOnefold",
}


def _result_type(options: StepOptions, function: Callable[..., Any]) -> object:
    return options.returns if options.has_type else result_type_of(function)


def _call_with_tx(
    what: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tx: Any
) -> Any:
    try:
        return function(tx, *args, **kwargs)
    except TypeError:
        _check_parameters(what, function, args, kwargs)  # only now: inspecting a signature takes longer than a query
        raise


def _check_parameters(what: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise WorkMisused if the function's signature does not take a transaction and these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        name = _name_of(function)
        raise WorkMisused(
            f"{what} cannot call {name}{signature} with a transaction and what it was given ({error}): its function "
            f"takes the transaction first: def {name.rpartition('.')[2]}(tx, ...). One that needs none is a work.call"
        ) from None


def _call_under(block: Block, function: Callable[[], Any]) -> Any:
    token = enter(block)
    try:
        return function()
    finally:
        leave(token)


async def _await_under(block: Block, function: Callable[[], Any]) -> Any:
    token = enter(block)
    try:
        return await function()
    finally:
        leave(token)


def _name_of(function: object) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)
