"""Private names of a driver are used in versions that the tests have run with, unless the environment forbids it."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from onefold._kernel.public_drivers import PUBLIC_ONLY, may_use_private_names

MAJOR, MINOR = map(int, version("pytest").split(".")[:2])


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PUBLIC_ONLY, raising=False)


def test_a_version_that_was_tested_may_be_used_through_private_names() -> None:
    assert may_use_private_names("pytest", [(0, 0), (MAJOR, MINOR)])


def test_another_version_is_used_through_its_public_api() -> None:
    assert not may_use_private_names("pytest", [(MAJOR, MINOR + 1), (MAJOR + 1, MINOR)])


def test_a_driver_without_metadata_is_used_through_its_public_api() -> None:
    assert not may_use_private_names("no-such-distribution", [(1, 0)])


@pytest.mark.parametrize(("value", "allowed"), [("1", False), ("yes", False), ("0", True), ("", True)])
def test_the_environment_can_forbid_private_names(monkeypatch: pytest.MonkeyPatch, value: str, allowed: bool) -> None:
    monkeypatch.setenv(PUBLIC_ONLY, value)
    assert may_use_private_names("pytest", [(MAJOR, MINOR)]) is allowed
