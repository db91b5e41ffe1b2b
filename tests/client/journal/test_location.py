"""Where the journal is by default, and that it is nobody else's business."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from onefold._client.journal.location import default_journal, make_private
from onefold.errors import ConfigurationError


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ONEFOLD_JOURNAL", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_it_is_where_a_users_programs_keep_their_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual = tmp_path / "home/.local/state/onefold/intents.db"
    assert default_journal() == usual
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # to be ignored, says the standard
    assert default_journal() == usual
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert default_journal() == tmp_path / "state/onefold/intents.db"


@pytest.mark.parametrize("given", ["{}/mine.db", "sqlite:///{}/mine.db"])
def test_a_variable_names_another_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str) -> None:
    monkeypatch.setenv("ONEFOLD_JOURNAL", given.format(tmp_path))
    assert default_journal() == tmp_path / "mine.db"


def test_a_variable_that_names_a_server_makes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_JOURNAL", "postgresql://me:hunter2@host/name")
    with pytest.raises(ConfigurationError, match="ONEFOLD_JOURNAL names a server") as refusal:
        default_journal()
    assert "hunter2" not in str(refusal.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_for_it_only_its_user_can_read(tmp_path: Path) -> None:
    path = tmp_path / "state" / "onefold" / "intents.db"
    assert make_private(path) == path
    assert [mode(each) for each in (path.parent.parent, path.parent, path)] == [0o700, 0o700, 0o600]
    path.write_bytes(b"kept")
    assert make_private(path).read_bytes() == b"kept"


def test_what_is_there_already_keeps_its_rights(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    make_private(folder / "intents.db")
    assert mode(folder) == 0o755


def test_a_place_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    reason, way_out = r"file/intents\.db' cannot be made: Not a directory", r"journal=, or without it ONEFOLD_JOURNAL"
    with pytest.raises(ConfigurationError, match=rf"{reason}.*{way_out}"):
        make_private(tmp_path / "file" / "intents.db")


def test_without_a_home_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(ConfigurationError, match="ONEFOLD_JOURNAL"):
        default_journal()
