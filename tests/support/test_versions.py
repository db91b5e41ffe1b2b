"""Which failures to install another version of a library skip a test, and which fail it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.versions import install


def test_without_an_index_the_test_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(pytest.skip.Exception, match="no package index"):
        install(["asyncpg==0.29.0"], tmp_path)


def test_control_a_version_that_does_not_exist_fails_the_test(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="No matching distribution"):
        install(["asyncpg==0.0.0.1"], tmp_path)
