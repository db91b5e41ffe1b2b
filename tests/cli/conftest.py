"""An application for the commands to run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import Shop, new_shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return new_shop(tmp_path)
