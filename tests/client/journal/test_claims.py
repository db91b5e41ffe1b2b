"""An intent has one key for as long as the server remembers it, and is never sent when it may have forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._kernel.ids import uuid7_ms
from onefold.client.journal import Journal, Named, forget
from onefold.client.journal.flow import SWEEP_EVERY, SWEEP_ROWS
from onefold.errors import ConfigurationError, IntentExpired, IntentInvalid, IntentReused, ProgrammerError
from tests.client.journal.worlds import DAY_S, HASH, PAY, TARGET, World

OTHER = b"o" * 32


async def test_a_new_intent_gets_a_new_key_and_keeps_it(world: World) -> None:
    journal = world.journal()
    assert await world.claim(journal) == Named("key-1", known=False)
    assert await world.claim(journal) == Named("key-1", known=True)
    assert await world.claim(world.journal()) == Named("key-1", known=True)
    assert await world.claim(journal, "pay:ord-43") == Named("key-4", known=False)


async def test_a_key_is_a_uuid7_unless_told_otherwise(world: World) -> None:
    named = await world.claim(Journal(world.dialect))
    assert uuid7_ms(named.key) is not None


async def test_an_answered_intent_that_is_used_again_has_the_same_key(world: World) -> None:
    journal = world.journal()
    await world.claim(journal)
    await world.flow(journal.resolve(PAY, 201))
    assert await world.unresolved() == []
    await world.age(PAY, DAY_S - 60)
    assert await world.claim(journal) == Named("key-1", known=True)
    assert await world.unresolved() == []


@pytest.mark.parametrize("resolved", [False, True], ids=["unresolved", "resolved"])
async def test_an_intent_cannot_name_two_calls(world: World, resolved: bool) -> None:
    journal = world.journal()
    await world.claim(journal)
    if resolved:
        await world.flow(journal.resolve(PAY, 201))
    with pytest.raises(IntentReused) as refusal:
        await world.claim(journal, fingerprint=OTHER, target="POST https://bank.example/refunds")
    said = str(refusal.value)
    assert PAY in said
    assert TARGET in said
    assert "POST https://bank.example/refunds" in said
    assert f"`onefold intents forget {PAY}`" in said
    assert (refusal.value.intent, refusal.value.key) == (PAY, "key-1")
    assert await world.claim(journal) == Named("key-1", known=True)
    [row] = await world.listed(unresolved_only=False)
    assert row.tries == 2


async def test_where_only_the_body_differs_it_is_said(world: World) -> None:
    await world.claim(world.journal())
    with pytest.raises(IntentReused, match="the query or the body differs"):
        await world.claim(world.journal(), fingerprint=OTHER)


async def test_an_intent_without_an_answer_is_not_sent_once_the_server_may_have_forgotten_it(world: World) -> None:
    journal = world.journal()
    await world.claim(journal, "my intent")
    await world.age("my intent", DAY_S - 60)
    assert await world.claim(journal, "my intent") == Named("key-1", known=True)
    await world.age("my intent", 61)
    with pytest.raises(IntentExpired, match=r"never answered.*86400 s.*nothing was sent.*key-1") as refusal:
        await world.claim(journal, "my intent")
    assert "`onefold intents forget 'my intent'`" in str(refusal.value)
    assert await world.unresolved() == ["my intent"]
    assert await world.flow(forget(world.dialect, "my intent")) is True
    assert await world.claim(journal, "my intent") == Named("key-4", known=False)


async def test_an_answered_intent_is_forgotten_after_the_retention(world: World) -> None:
    journal = world.journal()
    await world.claim(journal)
    await world.flow(journal.resolve(PAY, 201))
    await world.age(PAY, DAY_S + 1)
    assert await world.claim(journal, fingerprint=OTHER) == Named("key-2", known=False)


async def test_a_late_answer_makes_its_key_no_younger(world: World) -> None:
    """The server's memory began with the first call; the answer that came a day later may have been a replay."""
    journal = world.journal()
    await world.claim(journal)
    await world.age(PAY, DAY_S - 60)
    await world.flow(journal.resolve(PAY, 201))
    await world.age(PAY, 120)
    with pytest.raises(IntentExpired, match="answered with 201"):
        await world.claim(journal)


async def test_the_first_answer_is_the_one_that_counts(world: World) -> None:
    journal = world.journal()
    await world.claim(journal)
    await world.flow(journal.resolve(PAY, 201))
    [before] = await world.listed(unresolved_only=False)
    await world.age(PAY, 10, "resolved_at")
    await world.flow(journal.resolve(PAY, 409))
    await world.flow(journal.leave(PAY, "too late"))
    [after] = await world.listed(unresolved_only=False)
    assert (after.status, after.reason) == (201, None)
    assert before.resolved_ms is not None
    assert after.resolved_ms == before.resolved_ms - 10_000


async def test_a_call_that_is_left_stays_with_its_reason_until_it_is_answered(world: World) -> None:
    journal = world.journal()
    await world.claim(journal)
    await world.flow(journal.leave(PAY, "ReadTimeout:\x00 \ud800 after 3 attempts\n" + "x" * 1000))
    [row] = await world.listed()
    assert row.reason is not None
    assert row.reason.startswith("ReadTimeout:    after 3 attempts x")
    assert len(row.reason) == 500
    assert await world.claim(journal) == Named("key-1", known=True)
    await world.flow(journal.resolve(PAY, 422))
    [row] = await world.listed(unresolved_only=False)
    assert (row.status, row.reason, row.tries) == (422, None, 2)


async def test_what_was_forgotten_meanwhile_cannot_be_resolved_or_left(world: World) -> None:
    journal = world.journal()
    await world.flow(journal.resolve(PAY, 201))
    await world.flow(journal.leave(PAY, "gone"))
    assert await world.listed(unresolved_only=False) == []


# --- sweeping -------------------------------------------------------------------------------------------------


async def crowd(world: World, count: int, *, resolved: bool) -> None:
    """So many intents that are older than the retention."""
    journal = world.journal()
    for number in range(count):
        await world.claim(journal, f"old-{resolved}-{number}")
        if resolved:
            await world.flow(journal.resolve(f"old-{resolved}-{number}", 200))
        await world.age(f"old-{resolved}-{number}", 2 * DAY_S)


async def test_a_sweep_forgets_so_many_and_nothing_that_is_unresolved_or_young(world: World) -> None:
    await crowd(world, 5, resolved=True)
    await crowd(world, 2, resolved=False)
    journal = world.journal()
    await world.claim(journal, "young")
    assert await world.claim(journal, "answered") is not None
    await world.flow(journal.resolve("answered", 200))
    await crowd(world, 4, resolved=True)
    assert await world.flow(journal.sweep(2)) == 2
    assert await world.flow(journal.sweep()) == 2
    assert await world.flow(journal.sweep()) == 0
    left = [each.intent for each in await world.listed(unresolved_only=False)]
    assert left == ["old-False-0", "old-False-1", "young", "answered"]


async def test_claims_sweep_now_and_then_more_than_they_add(world: World) -> None:
    assert SWEEP_ROWS > SWEEP_EVERY
    journal = world.journal()
    await crowd(world, 2, resolved=True)
    await world.claim(journal, "first")
    assert [each.intent for each in await world.listed(unresolved_only=False)] == ["first"]
    await crowd(world, 1, resolved=True)
    for number in range(SWEEP_EVERY - 1):
        await world.claim(journal, f"more-{number}")
    assert (await world.listed(unresolved_only=False))[1].intent == "old-True-0"
    await world.claim(journal, "last")
    assert "old-True-0" not in {each.intent for each in await world.listed(unresolved_only=False)}


# --- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("intent", "says"),
    [
        ("", "0 characters"),
        ("x" * 256, "256 characters"),
        ("a\nb", "cannot be printed"),
        ("a\x00b", "cannot be printed"),
        ("a\ud800", "cannot be printed"),
        (42, "not int"),
    ],
)
async def test_a_name_that_nobody_could_read_or_type_is_refused(world: World, intent: Any, says: str) -> None:
    with pytest.raises(IntentInvalid, match=says):
        await world.claim(world.journal(), intent)


async def test_the_longest_name_in_any_script_is_fine(world: World) -> None:
    name = "ü支" * 127 + "!"
    assert (await world.claim(world.journal(), name)).known is False
    assert await world.unresolved() == [name]


@pytest.mark.parametrize("length", [0, 15, 33])
async def test_a_fingerprint_that_is_no_hash_is_refused(world: World, length: int) -> None:
    with pytest.raises(ProgrammerError, match=f"{length} bytes; it is a hash of 16 to 32"):
        await world.claim(world.journal(), fingerprint=HASH[:1] * length)


@pytest.mark.parametrize("retention_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_retention_that_is_no_time_is_refused(retention_s: float) -> None:
    with pytest.raises(ConfigurationError, match="retention_s"):
        Journal("sqlite", retention_s=retention_s)


def test_a_dialect_without_statements_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'mysql', only postgres, sqlite"):
        Journal("mysql")
