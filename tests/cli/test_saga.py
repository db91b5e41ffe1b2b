"""`onefold saga`: sagas of other processes are shown, retried and cancelled, and who did it is kept."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest

from onefold.sagas import Compensated
from onefold.sagas.dbos import Dbos
from tests.cli.commands import onefold, told
from tests.saga.conformance.cases import seen, until
from tests.saga.conformance.sagas import SAGAS, WORLD, mistaken, order, patient
from tests.support.fork_server import ROOT
from tests.support.patience import PATIENCE_S


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "sagashop.py").write_text(
        dedent(f"""\
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from onefold.sagas.dbos import Dbos
        from tests.saga.conformance.sagas import SAGAS

        engine = Dbos("sqlite:///{tmp_path}/sagas.db", sagas=SAGAS)

        def make():
            return engine

        wrong = 1
        """)
    )
    return tmp_path


async def test_sagas_are_listed_shown_cancelled_and_retried_from_another_process(shop: Path) -> None:
    async with Dbos(f"sqlite:///{shop}/sagas.db", sagas=SAGAS, takeover_s=0.2) as engine:
        await engine.start(order, "cli-done", {"item": "book"})
        await engine.result("cli-done", timeout_s=PATIENCE_S)
        await engine.start(patient, "cli-waits", {"item": "book"})
        await seen("cli-waits", "reserve")
        await engine.start(mistaken, "cli-stops", {"item": "book"})
        await until(engine, "cli-stops", "stopped")

        listed = onefold("saga", "list", "sagashop:engine", "--json", cwd=shop)
        assert listed.returncode == 0, listed.stderr
        states = {each["saga_id"]: each["state"] for each in json.loads(listed.stdout)}
        assert states == {"cli-done": "completed", "cli-waits": "running", "cli-stops": "stopped"}
        table = onefold("saga", "list", "sagashop:make", "--state", "stopped", cwd=shop).stdout
        assert "cli-stops" in table
        assert "cli-done" not in table
        shown = onefold("saga", "show", "sagashop:engine", "cli-done", cwd=shop)
        assert "cli-done: conformance-order version 1, completed" in shown.stdout
        assert "'reserved book'" in shown.stdout

        refused = onefold("saga", "retry", "sagashop:engine", "cli-waits", "--actor", "ann", cwd=shop)
        assert (refused.returncode, "Traceback" in refused.stderr) == (1, False), refused.stderr
        assert "saga 'cli-waits' is running" in refused.stderr

        cancelled = onefold("saga", "cancel", "sagashop:engine", "cli-waits", "--actor", "ann", "--json", cwd=shop)
        assert told(cancelled) == {"asked_to_cancel": "cli-waits"}
        with pytest.raises(Compensated, match="cancelled by ann"):
            await engine.result("cli-waits", timeout_s=PATIENCE_S)
        assert WORLD.of("cli-waits") == ["reserve", "release"]
        actions = [(each.name, each.result) for each in await engine.history("cli-waits") if each.kind == "action"]
        assert actions == [("retry", "ann"), ("cancel", "ann")]

        WORLD.broken.add("fixed cli-stops")
        retried = onefold("saga", "retry", "sagashop:engine", "cli-stops", "--actor", "bob", "--json", cwd=shop)
        assert told(retried) == {"resumed": "cli-stops"}
        assert await engine.result("cli-stops", timeout_s=PATIENCE_S) == "repaired"
        again = onefold("saga", "retry", "sagashop:engine", "cli-stops", cwd=shop)
        assert (again.returncode, "has ended" in again.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("list", "sagashop:wrong"), "'sagashop:wrong' is an int; give an engine"),
        (("list", "sagashop:engine", "--state", "odd"), "--state 'odd' is not one of running"),
        (("show", "sagashop:engine", "unknown"), "there is no saga 'unknown'"),
        (("cancel", "sagashop:engine", "unknown"), "there is no saga 'unknown'"),
    ],
)
def test_mistakes_are_told_in_one_line(shop: Path, words: tuple[str, ...], told: str) -> None:
    ran = onefold("saga", *words, cwd=shop)
    assert ran.returncode != 0
    assert told in ran.stderr
    assert "Traceback" not in ran.stderr
