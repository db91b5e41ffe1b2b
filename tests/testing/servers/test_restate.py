"""A private Restate answers after its death, sends no telemetry, and is installed only into a virtual environment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from onefold.testing.servers import PrivateRestate, PrivateServer, ServerUnavailable, install_restate

QUERY = {"query": "SELECT COUNT(*) AS found FROM sys_invocation"}


def test_it_answers_after_a_kill_and_says_that_it_reports_nothing(started: Callable[[PrivateServer], None]) -> None:
    server = PrivateRestate()
    started(server)
    for _ in range(2):
        found = httpx.post(f"{server.admin}/query", json=QUERY, headers={"accept": "application/json"})
        assert found.json() == {"rows": [{"found": 0}]}
        server.kill()
        server.restart()
    assert "disable-telemetry = true" in (server.directory / "restate.toml").read_text()


def test_where_it_is_not_installed_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match=r"restate-server is not there.*install_restate\(\)"):
        PrivateRestate().start()


def test_without_npm_it_cannot_be_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="npm"):
        install_restate()
    assert list(tmp_path.iterdir()) == []


def test_without_a_virtual_environment_it_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="virtual environment"):
        install_restate()


def test_npm_that_fails_is_told_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text('#!/bin/sh\necho "$@ is not to be had" >&2\nexit 1\n')
    npm.chmod(0o755)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match=r"(?s)exited with 1.*--ignore-scripts.*is not to be had"):
        install_restate()
