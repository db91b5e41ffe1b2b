"""The two runners: they drive a flow by calling the executor's verbs for the effects it awaits, on a thread or on
asyncio.

What an effect raises is thrown into the flow at the place that awaited it, so flows handle failure with
plain `try`. An interruption (cancellation, KeyboardInterrupt) is different: nothing more may be awaited on
its connection, so the executor abandons it at once and the flow is closed where it stands. The server rolls back.
Flows whose connection is another's have runners of their own (`inside_calls.py`), which abandon nothing.
"""

from __future__ import annotations

from typing import Any, TypeVar

from onefold._kernel.effects import Effect, Flow
from onefold._kernel.ports import AsyncExecutor, Executor
from onefold.errors import ProgrammerError

T = TypeVar("T")


def run(flow: Flow[T], executor: Executor) -> T:
    """Run a flow to its end on this thread."""
    send: Any = flow.send
    resume = send
    answer: Any = None
    while True:
        try:
            effect = resume(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            verb, argument = getattr(executor, effect.verb), effect.argument
            answer = verb() if argument is None else verb(argument)
            resume = send
        except Exception as error:
            resume, answer = flow.throw, error if isinstance(effect, Effect) else not_an_effect(effect)
        except BaseException:
            executor.abandon()
            flow.close()
            raise


async def run_async(flow: Flow[T], executor: AsyncExecutor) -> T:
    """Run a flow to its end on the running loop."""
    send: Any = flow.send
    resume = send
    answer: Any = None
    while True:
        try:
            effect = resume(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        try:
            verb, argument = getattr(executor, effect.verb), effect.argument
            answer = await (verb() if argument is None else verb(argument))
            resume = send
        except Exception as error:
            resume, answer = flow.throw, error if isinstance(effect, Effect) else not_an_effect(effect)
        except BaseException:
            executor.abandon()
            flow.close()
            raise


def not_an_effect(effect: object) -> ProgrammerError:
    return ProgrammerError(
        f"a flow awaited {effect!r}, which is not an effect; flows await the effects of onefold only "
        "(to run other code inside a flow, await Call(function))"
    )
