"""Steps with an effect in your own database: each applies once, and never after it was undone.

Theory of operation. An engine may run a step twice, and a step that hangs may come back after its compensation. So the
step's key is written in the transaction of its effect: the second execution finds it, and gets the first one's result.
A compensation turns the row into a tombstone, or writes one where the step never applied: then there is nothing to
undo, and an execution that comes late finds the tombstone and is refused.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Final, Protocol

from onefold._kernel.inside_calls import perform_inside
from onefold._kernel.results import annotation_of, decode_result, encode_result, result_type_of
from onefold._policy.ranges import require
from onefold._saga.effect_rows import EffectState, claim, entomb, forget, keep
from onefold._saga.saga_errors import Abort
from onefold._saga.step_keys import StepKeys, current_step, only_use
from onefold.errors import ConfigurationError

DAY_S: Final = 86_400
#: Rows that are deleted in one transaction.
_REAPED_AT_ONCE: Final = 500
_DATABASE: Final = "__onefold_effects_database__"


class Undone(Abort):
    """The step was undone before it could apply: it is refused, and nothing is written."""


class Transactions(Protocol):
    """A Onefold or AsyncOnefold."""

    _asynchronous: ClassVar[bool]
    _database: Any

    def transaction(self) -> Any: ...


class Effects:
    """Steps in your own database, over a Onefold or AsyncOnefold (`once`):

    effects = Effects(once)

    @effects.apply
    async def reserve(tx, o): ...     # in a transaction of its own; its second execution gets the first one's result

    @effects.undo
    async def release(tx, o): ...     # runs only if the step had applied, and once
    """

    __slots__ = ("_once",)

    def __init__(self, once: Transactions) -> None:
        if not hasattr(once, "transaction") or not hasattr(once, "_database"):
            raise ConfigurationError(f"Effects({once!r}) needs a Onefold or an AsyncOnefold")
        self._once = once

    def apply(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A step of what writes in a transaction: `function(tx, ...)`. It applies once; where it was undone before,
        it is refused (Undone), and the saga compensates."""
        return self._wrap(function, _Applying, "apply")

    def undo(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A compensation, `function(tx, ...)`: it runs where its step had applied, and once. Where it never applied, it
        never will."""
        return self._wrap(function, _Undoing, "undo")

    async def reap(self, *, older_s: int) -> int:
        """Forget steps that are older than `older_s`; how many. They must be of sagas that have ended, and that no
        engine starts again: what is forgotten of one that runs applies a second time, and is not undone. So choose
        longer than any saga lives, its pauses and signals included."""
        require("older_s", older_s, least=60, most=36_500 * DAY_S, whole=True)
        dialect = self._once._database.dialect

        def reap_in_thread() -> int:
            with self._once.transaction() as tx:
                return int(perform_inside(tx, forget(dialect, older_s, _REAPED_AT_ONCE)))

        async def reap_some() -> int:
            if not self._once._asynchronous:
                return await asyncio.to_thread(reap_in_thread)
            async with self._once.transaction() as tx:
                return int(await perform_inside(tx, forget(dialect, older_s, _REAPED_AT_ONCE)))

        reaped = 0
        while (some := await reap_some()) > 0:
            reaped += some
        return reaped

    def _wrap(self, function: Callable[..., Any], part: type[_Applying | _Undoing], name: str) -> Callable[..., Any]:
        once, dialect = self._once, self._once._database.dialect
        if inspect.iscoroutinefunction(function) != once._asynchronous:
            needed = (
                "an `async def`, for it is an AsyncOnefold" if once._asynchronous else "a `def`, for it is a Onefold"
            )
            raise ConfigurationError(f"effects.{name}({function.__qualname__}): it must be {needed}")

        def run(*args: Any) -> Any:
            work = part(function, dialect, current_step(f"effects.{name}"))
            with only_use(function.__qualname__, (name, once)), once.transaction() as tx:
                perform_inside(tx, work.begin())
                value = function(tx, *args) if work.runs else work.result
                perform_inside(tx, work.end(value))
            return value

        async def run_async(*args: Any) -> Any:
            work = part(function, dialect, current_step(f"effects.{name}"))
            with only_use(function.__qualname__, (name, once)):
                return await work_in_transaction(work, *args)

        async def work_in_transaction(work: _Applying | _Undoing, *args: Any) -> Any:
            async with once.transaction() as tx:
                await perform_inside(tx, work.begin())
                value = await function(tx, *args) if work.runs else work.result
                await perform_inside(tx, work.end(value))
            return value

        wrapped = _named_like(run_async if once._asynchronous else run, function)
        setattr(wrapped, _DATABASE, once)
        return wrapped


class _Applying:
    """One execution of a step."""

    def __init__(self, function: Callable[..., Any], dialect: str, keys: StepKeys) -> None:
        self._type = result_type_of(function)
        self._dialect, self._keys = dialect, keys
        self.runs, self.result = True, None

    async def begin(self) -> None:
        state, result = await claim(self._dialect, self._keys.key)
        if state is EffectState.UNDONE:
            raise Undone(f"{self._keys.key} was undone before it could apply: it came late, and is refused")
        if state is EffectState.APPLIED:
            self.runs = False
            self.result = None if result is None else decode_result(result.encode(), self._type, what=self._what)

    async def end(self, value: Any) -> None:
        if self.runs:
            encoded = encode_result(value, self._type, what=self._what)
            await keep(self._dialect, self._keys.key, encoded.decode())

    @property
    def _what(self) -> str:
        return f"the result of step {self._keys.key!r}"


class _Undoing:
    """One execution of a compensation."""

    def __init__(self, function: Callable[..., Any], dialect: str, keys: StepKeys) -> None:
        self._dialect, self._keys = dialect, keys
        self.runs, self.result = False, None
        if not keys.undo:
            raise ConfigurationError(
                f"{function.__qualname__} is made by effects.undo, and runs as step {keys.key!r}: it is for undo="
            )

    async def begin(self) -> None:
        self.runs = await entomb(self._dialect, self._keys.forward)

    async def end(self, value: Any) -> None:
        """Store nothing: no engine reads the result of a compensation."""


def effects_database(function: object) -> object | None:
    """The Onefold of a function made by `effects.apply` or `effects.undo`; None for another function."""
    return getattr(function, _DATABASE, None)


def _named_like(run: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Give `run` the name and signature of the function, without its first parameter, the transaction."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    run.__name__, run.__qualname__, run.__module__ = function.__name__, function.__qualname__, function.__module__
    run.__doc__ = function.__doc__
    run.__annotations__ = {each.name: annotation_of(function, each.name) for each in parameters}
    run.__annotations__["return"] = result_type_of(function)
    run.__signature__ = signature.replace(parameters=parameters)
    wrapped: Callable[..., Any] = run
    return wrapped
