"""What an import brings along: a process does not pay for what only others need."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.packaging.test_package import run

#: Imported by those who use them, when they first do.
BY_USE = (
    "onefold._app.asyncapi_document",
    "onefold._app.migrations",
    "onefold._client.journal.flow",
    "onefold._http.shedding",
    "onefold._http.status_pages",
    "onefold._inbox.consumer",
    "onefold._inbox.sql",
    "onefold._kernel.telemetry.every_event",
    "onefold._outbox.relay_session",
    "onefold._outbox.schedules",
    "onefold._outbox.sql.postgres",
    "onefold._outbox.sql.sqlite",
    "onefold._worker.consumer_runner",
    "onefold._worker.relay_loop",
    "onefold.brokers.local",
    "onefold.db.sqlite",
)


def modules_after(statement: str) -> set[str]:
    ran = run(f"{statement}\nimport sys; print(*sys.modules)")
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def test_the_root_alone_imports_nothing_of_ours_and_little_else() -> None:
    bare, found = modules_after("pass"), modules_after("import onefold")
    assert {name for name in found if name.startswith("onefold")} == {"onefold"}
    assert len(found - bare) <= 40, sorted(found - bare)


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("from onefold import AsyncOnefold", 106),
        ("from onefold import Onefold", 106),
        ("from onefold import retrying", 70),
        ("from onefold import RetryPolicy", 20),
        ("from onefold import OnefoldError", 2),
    ],
)
def test_a_name_brings_along_only_what_everyone_who_uses_it_needs(statement: str, most: int) -> None:
    ours = {name for name in modules_after(statement) if name.startswith("onefold")}
    assert not ours & set(BY_USE)
    assert len(ours) <= most, sorted(ours)


def test_what_is_used_is_imported() -> None:
    """The control: these modules are there, and can be seen where they are imported."""
    assert [name for name in BY_USE if find_spec(name) is None] == []
    assert modules_after(f"import {', '.join(BY_USE)}") >= set(BY_USE)


def test_what_pages_write_with_its_module_is_found_by_who_imported_the_root() -> None:
    asked = ("errors.CallNotMade", "telemetry.CallEnded", "policies.Quota", "clients.options", "shedding.Shedding")
    ran = run("import onefold\n" + "\n".join(f"onefold.{name}" for name in asked))
    assert ran.returncode == 0, ran.stderr
