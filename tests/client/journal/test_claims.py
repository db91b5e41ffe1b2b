"""An intent has one key for as long as the server remembers it, and is never sent when it may have forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._client.journal.flow import SWEEP_EVERY, SWEEP_ROWS, Journal
from onefold._client.journal.queries import forget
from onefold._client.journal.records import ClaimedKey
from onefold._kernel.ids import uuid7_ms
from onefold.errors import ConfigurationError, IntentExpired, IntentInvalid, IntentReused, ProgrammerError
from tests.client.journal.backends import DAY_S, HASH, PAY, TARGET, Backend

OTHER = b"o" * 32


async def test_a_new_intent_gets_a_new_key_and_keeps_it(backend: Backend) -> None:
    journal = backend.journal()
    assert await backend.claim(journal) == ClaimedKey("key-1", known=False)
    assert await backend.claim(journal) == ClaimedKey("key-1", known=True)
    assert await backend.claim(backend.journal()) == ClaimedKey("key-1", known=True)
    assert await backend.claim(journal, "pay:ord-43") == ClaimedKey("key-4", known=False)


async def test_a_key_is_a_uuid7_unless_told_otherwise(backend: Backend) -> None:
    named = await backend.claim(Journal(backend.dialect))
    assert uuid7_ms(named.key) is not None


async def test_an_answered_intent_that_is_used_again_has_the_same_key(backend: Backend) -> None:
    journal = backend.journal()
    await backend.claim(journal)
    await backend.flow(journal.resolve(PAY, 201))
    assert await backend.unresolved() == []
    await backend.age(PAY, DAY_S - 60)
    assert await backend.claim(journal) == ClaimedKey("key-1", known=True)
    assert await backend.unresolved() == []


@pytest.mark.parametrize("resolved", [False, True], ids=["unresolved", "resolved"])
async def test_an_intent_cannot_name_two_calls(backend: Backend, resolved: bool) -> None:
    journal = backend.journal()
    await backend.claim(journal)
    if resolved:
        await backend.flow(journal.resolve(PAY, 201))
    with pytest.raises(IntentReused) as refusal:
        await backend.claim(journal, fingerprint=OTHER, target="POST https://bank.example/refunds")
    said = str(refusal.value)
    assert PAY in said
    assert TARGET in said
    assert "POST https://bank.example/refunds" in said
    assert f"`onefold intents forget {PAY}`" in said
    assert (refusal.value.intent, refusal.value.key) == (PAY, "key-1")
    assert await backend.claim(journal) == ClaimedKey("key-1", known=True)
    [row] = await backend.listed(unresolved_only=False)
    assert row.tries == 2


async def test_where_only_the_body_differs_it_is_said(backend: Backend) -> None:
    await backend.claim(backend.journal())
    with pytest.raises(IntentReused, match="the query or the body differs"):
        await backend.claim(backend.journal(), fingerprint=OTHER)


async def test_an_intent_without_an_answer_is_not_sent_once_the_server_may_have_forgotten_it(backend: Backend) -> None:
    journal = backend.journal()
    await backend.claim(journal, "my intent")
    await backend.age("my intent", DAY_S - 60)
    assert await backend.claim(journal, "my intent") == ClaimedKey("key-1", known=True)
    await backend.age("my intent", 61)
    with pytest.raises(IntentExpired, match=r"never answered.*86400 s.*nothing was sent.*key-1") as refusal:
        await backend.claim(journal, "my intent")
    assert "`onefold intents forget 'my intent'`" in str(refusal.value)
    assert await backend.unresolved() == ["my intent"]
    assert await backend.flow(forget(backend.dialect, "my intent")) is True
    assert await backend.claim(journal, "my intent") == ClaimedKey("key-4", known=False)


async def test_an_answered_intent_is_forgotten_after_the_retention(backend: Backend) -> None:
    journal = backend.journal()
    await backend.claim(journal)
    await backend.flow(journal.resolve(PAY, 201))
    await backend.age(PAY, DAY_S + 1)
    assert await backend.claim(journal, fingerprint=OTHER) == ClaimedKey("key-2", known=False)


async def test_a_late_answer_makes_its_key_no_younger(backend: Backend) -> None:
    """The server's memory began with the first call; the answer that came a day later may have been a replay."""
    journal = backend.journal()
    await backend.claim(journal)
    await backend.age(PAY, DAY_S - 60)
    await backend.flow(journal.resolve(PAY, 201))
    await backend.age(PAY, 120)
    with pytest.raises(IntentExpired, match="answered with 201"):
        await backend.claim(journal)


async def test_the_first_answer_is_the_one_that_counts(backend: Backend) -> None:
    journal = backend.journal()
    await backend.claim(journal)
    await backend.flow(journal.resolve(PAY, 201))
    [before] = await backend.listed(unresolved_only=False)
    await backend.age(PAY, 10, "resolved_at")
    await backend.flow(journal.resolve(PAY, 409))
    await backend.flow(journal.leave(PAY, "too late"))
    [after] = await backend.listed(unresolved_only=False)
    assert (after.status, after.reason) == (201, None)
    assert before.resolved_ms is not None
    assert after.resolved_ms == before.resolved_ms - 10_000


async def test_a_call_that_is_left_stays_with_its_reason_until_it_is_answered(backend: Backend) -> None:
    journal = backend.journal()
    await backend.claim(journal)
    await backend.flow(journal.leave(PAY, "ReadTimeout:\x00 \ud800 after 3 attempts\n" + "x" * 1000))
    [row] = await backend.listed()
    assert row.reason is not None
    assert row.reason.startswith("ReadTimeout:    after 3 attempts x")
    assert len(row.reason) == 500
    assert await backend.claim(journal) == ClaimedKey("key-1", known=True)
    await backend.flow(journal.resolve(PAY, 422))
    [row] = await backend.listed(unresolved_only=False)
    assert (row.status, row.reason, row.tries) == (422, None, 2)


async def test_what_was_forgotten_meanwhile_cannot_be_resolved_or_left(backend: Backend) -> None:
    journal = backend.journal()
    await backend.flow(journal.resolve(PAY, 201))
    await backend.flow(journal.leave(PAY, "gone"))
    assert await backend.listed(unresolved_only=False) == []


# --- sweeping -------------------------------------------------------------------------------------------------


async def crowd(backend: Backend, count: int, *, resolved: bool) -> None:
    """So many intents that are older than the retention."""
    journal = backend.journal()
    for number in range(count):
        await backend.claim(journal, f"old-{resolved}-{number}")
        if resolved:
            await backend.flow(journal.resolve(f"old-{resolved}-{number}", 200))
        await backend.age(f"old-{resolved}-{number}", 2 * DAY_S)


async def test_a_sweep_forgets_so_many_and_nothing_that_is_unresolved_or_young(backend: Backend) -> None:
    await crowd(backend, 5, resolved=True)
    await crowd(backend, 2, resolved=False)
    journal = backend.journal()
    await backend.claim(journal, "young")
    assert await backend.claim(journal, "answered") is not None
    await backend.flow(journal.resolve("answered", 200))
    await crowd(backend, 4, resolved=True)
    assert await backend.flow(journal.sweep(2)) == 2
    assert await backend.flow(journal.sweep()) == 2
    assert await backend.flow(journal.sweep()) == 0
    left = [each.intent for each in await backend.listed(unresolved_only=False)]
    assert left == ["old-False-0", "old-False-1", "young", "answered"]


async def test_claims_sweep_now_and_then_more_than_they_add(backend: Backend) -> None:
    assert SWEEP_ROWS > SWEEP_EVERY
    journal = backend.journal()
    await crowd(backend, 2, resolved=True)
    await backend.claim(journal, "first")
    assert [each.intent for each in await backend.listed(unresolved_only=False)] == ["first"]
    await crowd(backend, 1, resolved=True)
    for number in range(SWEEP_EVERY - 1):
        await backend.claim(journal, f"more-{number}")
    assert (await backend.listed(unresolved_only=False))[1].intent == "old-True-0"
    await backend.claim(journal, "last")
    assert "old-True-0" not in {each.intent for each in await backend.listed(unresolved_only=False)}


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
async def test_a_name_that_nobody_could_read_or_type_is_refused(backend: Backend, intent: Any, says: str) -> None:
    with pytest.raises(IntentInvalid, match=says):
        await backend.claim(backend.journal(), intent)


async def test_the_longest_name_in_any_script_is_fine(backend: Backend) -> None:
    name = "ü支" * 127 + "!"
    assert (await backend.claim(backend.journal(), name)).known is False
    assert await backend.unresolved() == [name]


@pytest.mark.parametrize("length", [0, 15, 33])
async def test_a_fingerprint_that_is_no_hash_is_refused(backend: Backend, length: int) -> None:
    with pytest.raises(ProgrammerError, match=f"{length} bytes; it is a hash of 16 to 32"):
        await backend.claim(backend.journal(), fingerprint=HASH[:1] * length)


@pytest.mark.parametrize("retention_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_retention_that_is_no_time_is_refused(retention_s: float) -> None:
    with pytest.raises(ConfigurationError, match="retention_s"):
        Journal("sqlite", retention_s=retention_s)


def test_a_dialect_without_statements_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'mysql', only postgres, sqlite"):
        Journal("mysql")
