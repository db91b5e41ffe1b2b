"""The site, as `make docs` builds it, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build_site(folder: Path, *, api: bool) -> Path:
    """A link of a page that leads nowhere ends the build. Without `api` its pages are empty, in a third of the time."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "DOCS_API": str(api).lower()},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder.resolve()
