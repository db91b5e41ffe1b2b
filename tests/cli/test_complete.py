"""`onefold complete`: what was left is finished in a process of its own; killed in the middle, the next one goes on."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
import sys
from typing import Any

import httpx
import pytest

from tests.cli.commands import Shop, one_line, told, until

WORK = ("complete", "rides:once", "--abandoned-after", "0")


def post(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> int:
    """A request to the application, in this process."""
    monkeypatch.setenv("RIDES", str(shop.folder))
    spec = importlib.util.spec_from_file_location("rides_here", shop.folder / "rides.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rides_here", module)
    spec.loader.exec_module(module)

    async def ask() -> int:
        transport = httpx.ASGITransport(module.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://rides") as client:
            answer = await client.post("/rides", headers={"Idempotency-Key": "ride-1"})
        await module.once.close()
        return answer.status_code

    return asyncio.run(ask())


def left(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that charged its card, and whose client does not come back."""
    shop.put("breaks")
    assert post(shop, monkeypatch) == 500
    shop.remove("breaks")


def charged(shop: Shop) -> list[str]:
    return (shop.folder / "charged").read_text().split()


def works(shop: Shop) -> list[tuple[Any, ...]]:
    return shop.rows("SELECT attempts, parked FROM onefold_work")


def test_one_round_completes_what_is_due_with_the_application_started(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(shop, monkeypatch)
    (shop.folder / "lives").unlink(missing_ok=True)
    assert told(shop.onefold(*WORK, "--once", "--json")) == {"completed": 1, "failed": 0, "parked": 0}
    assert (shop.folder / "lives").read_text() == "started\nended\n"
    assert shop.onefold(*WORK, "--once").stdout == "completed: 0, failed: 0, parked: 0\n"
    assert (len(charged(shop)), works(shop)) == (1, [])
    assert post(shop, monkeypatch) == 201
    assert len(charged(shop)) == 1


def test_a_completer_that_is_killed_leaves_the_work_to_the_next_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(shop, monkeypatch)
    shop.put("hold-charged")
    (shop.folder / "at-charged").unlink()
    with shop.started(*WORK, "--every", "0.05") as first:
        until(lambda: shop.has("at-charged") or first.process.poll() is not None)
        first.tell(signal.SIGKILL)
        first.ended()
    assert [attempts for attempts, _ in works(shop)] == [2]
    shop.remove("hold-charged")
    shop.change("UPDATE onefold_work SET due_at_ms = 1, lease_ends_at_ms = 1")  # as after the end of its lease
    with shop.started(*WORK, "--every", "0.05") as second:
        until(lambda: not works(shop))
        second.tell(signal.SIGTERM)
        assert second.ended() == 0
    assert len(charged(shop)) == 1
    assert post(shop, monkeypatch) == 201


def test_a_completer_that_is_killed_in_a_call_has_it_made_again_under_the_same_key(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(shop, monkeypatch)
    shop.change("DELETE FROM onefold_step")  # as if the first process had died in the call
    shop.put("hold-charge")
    (shop.folder / "at-charge").unlink()
    with shop.started(*WORK, "--every", "0.05") as first:
        until(lambda: shop.has("at-charge") or first.process.poll() is not None)
        first.tell(signal.SIGKILL)
        first.ended()
    shop.remove("hold-charge")
    shop.change("UPDATE onefold_work SET due_at_ms = 1, lease_ends_at_ms = 1")  # as after the end of its lease
    assert told(shop.onefold(*WORK, "--once", "--json"))["completed"] == 1
    assert (len(charged(shop)), len(set(charged(shop)))) == (3, 1)


def test_a_stop_lets_the_request_in_hand_end(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    left(shop, monkeypatch)
    shop.put("hold-charged")
    (shop.folder / "at-charged").unlink()
    with shop.started(*WORK) as running:
        until(lambda: shop.has("at-charged") or running.process.poll() is not None)
        running.tell(signal.SIGTERM)
        shop.remove("hold-charged")
        assert running.ended() == 0
    assert works(shop) == []


def test_what_keeps_failing_is_parked_and_shown_to_people(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    left(shop, monkeypatch)
    shop.put("breaks")
    ended = shop.onefold(*WORK, "--once", "--attempts", "2")
    assert ended.stdout == "completed: 0, failed: 0, parked: 1\n"
    assert "is parked and is not tried again: failed 2 times: RuntimeError: the process breaks here" in ended.stderr
    [work] = told(shop.onefold("keys", "list", "--parked", "--json", "-d", str(shop.database)))
    assert (work["operation"], work["attempts"], work["steps"]) == ("POST /rides", 2, 1)
    shop.remove("breaks")
    told(shop.onefold("keys", "resume", work["id"], "--yes", "--json", "-d", str(shop.database)))
    assert told(shop.onefold(*WORK, "--once", "--json"))["completed"] == 1
    assert len(charged(shop)) == 1


def test_an_onefold_that_is_installed_nowhere_is_told(shop: Shop) -> None:
    (shop.folder / "bare.py").write_text(
        "from onefold import AsyncOnefold, single_principal\n"
        "once = AsyncOnefold('shop.db', principal=single_principal)\n"
    )
    assert "is installed in no application of this process" in one_line(shop.onefold("complete", "bare:once", "--once"))


@pytest.mark.parametrize("wrong", [("--every", "0"), ("--attempts", "0"), ("--abandoned-after", "-1")])
def test_settings_out_of_range_are_told(shop: Shop, wrong: tuple[str, str]) -> None:
    assert "out of range" in one_line(shop.onefold("complete", "rides:once", "--once", *wrong))
