"""A flow against its script: what agrees, and what is said where they differ."""

from __future__ import annotations

import pytest

from onefold._kernel.effects import Acquire, Batch, Boundary, Call, Fetch, Now, Release, Statement
from onefold.errors import ConnectionLost
from tests.support.scripts import Really, ScriptDiffers, play

ONE = Statement("SELECT 1")


async def flow() -> str:
    await Acquire()
    try:
        rows = await Fetch(ONE)
    except ConnectionLost:
        return "lost"
    await Release()
    return f"found {len(rows)}"


def test_a_flow_that_follows_its_script_returns_its_value() -> None:
    assert play(flow(), [(Acquire(), None), (Fetch(ONE), [(1,)]), (Release, None)]) == "found 1"


def test_an_exception_is_thrown_where_it_is_awaited() -> None:
    assert play(flow(), [(Acquire, None), (Fetch, ConnectionLost("gone"))]) == "lost"


def test_a_function_may_say_what_is_expected() -> None:
    def commits(effect: object) -> bool:
        return isinstance(effect, Batch) and effect.argument[-1] is Boundary.COMMIT

    async def settle() -> int:
        return await Batch((ONE, Boundary.COMMIT))

    assert play(settle(), [(commits, 3)]) == 3


def test_a_call_can_really_be_made() -> None:
    async def calls() -> int:
        return int(await Call(lambda: 41)) + 1

    assert play(calls(), [(Call, Really.CALL)]) == 42


def test_what_a_call_raises_is_thrown_like_any_answer() -> None:
    async def calls() -> str:
        try:
            await Call(lambda: [][0])
        except IndexError:
            return "caught"
        return "nothing was thrown"

    assert play(calls(), [(Call, Really.CALL)]) == "caught"


def test_another_effect_than_expected_is_named() -> None:
    with pytest.raises(ScriptDiffers, match=r"turn 2 of 2: the script has Release\(\), the flow awaited Fetch\("):
        play(flow(), [(Acquire, None), (Release(), None)])


def test_an_effect_of_another_type_than_expected_is_named() -> None:
    with pytest.raises(ScriptDiffers, match=r"turn 1 of 1: the script has Now, the flow awaited Acquire\(\)"):
        play(flow(), [(Now, 0.0)])


def test_a_flow_that_goes_on_after_its_script_is_found() -> None:
    with pytest.raises(ScriptDiffers, match=r"ends after turn 1, the flow awaited Fetch\("):
        play(flow(), [(Acquire, None)])


def test_a_flow_that_ends_before_its_script_is_found() -> None:
    with pytest.raises(ScriptDiffers, match=r"turn 3 of 3: the script has Release, the flow ended with 'lost'"):
        play(flow(), [(Acquire, None), (Fetch, ConnectionLost("gone")), (Release, None)])


def test_a_flow_that_lets_a_scripted_error_rise_too_early_is_found() -> None:
    with pytest.raises(ScriptDiffers, match=r"turn 2 of 2: the script has Release, the flow let .* rise"):
        play(flow(), [(Acquire, ConnectionLost("gone")), (Release, None)])


def test_an_error_that_the_script_ends_with_rises() -> None:
    with pytest.raises(ConnectionLost):
        play(flow(), [(Acquire, ConnectionLost("gone"))])


def test_an_error_of_the_flow_itself_rises_with_a_note_of_the_turn() -> None:
    async def stumbles() -> None:
        await Acquire()
        raise LookupError("its own")

    with pytest.raises(LookupError) as raised:
        play(stumbles(), [(Acquire, None), (Release, None)])
    assert raised.value.__notes__ == ["turn 2 of 2: the script has Release, the flow raised this"]


def test_only_a_call_can_be_really_made() -> None:
    with pytest.raises(ScriptDiffers, match="only a Call"):
        play(flow(), [(Acquire, Really.CALL)])
