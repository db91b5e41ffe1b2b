"""The browser of the tests leaves nothing behind, and says what is missing where there is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.testing.servers import ServerUnavailable
from tests.support.chromium import find_chromium
from tests.support.patience import PATIENCE_S

PROGRAM = """
from tests.support.chromium import open_chromium
with open_chromium() as browser:
    page = browser.new_page()
    page.set_content("<title>It runs</title>")
    print(page.title(), flush=True)
    input()
"""


def children_of(home: Path) -> list[str]:
    """The processes that have this directory in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"HOME={home}/onefold-chromium-".encode() in (process / "environ").read_bytes():
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.fixture
def place() -> Iterator[Path]:
    """Not pytest's: Chromium has a socket in it, whose path must not be long."""
    with tempfile.TemporaryDirectory(prefix="of-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.mark.parametrize("end", ["the block ends", "SIGKILL"])
def test_it_ends_all_its_processes(end: str, place: Path) -> None:
    try:
        find_chromium()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TMPDIR": str(place)},
    ) as opened:
        assert opened.stdout is not None
        assert opened.stdout.readline() == "It runs\n"
        assert len(children_of(place)) > 1
        if end == "SIGKILL":
            opened.send_signal(signal.SIGKILL)
        else:
            opened.communicate("\n", timeout=PATIENCE_S)
    give_up_at = time.monotonic() + PATIENCE_S
    while children_of(place):
        assert time.monotonic() < give_up_at, "they outlive it"
        time.sleep(0.05)


def test_without_one_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerUnavailable, match="make chromium"):
        find_chromium()
