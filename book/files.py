"""Where the files of the checkout are."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE: Final = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PROBLEMS: Final = (ROOT / "docs" / "problems.md").read_text(encoding="utf-8")
