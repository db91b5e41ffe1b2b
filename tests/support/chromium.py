"""A private Chromium, Debian's, driven by Playwright: `python -m tests.support.chromium` has apt install it.

Its profile and its home are a directory that goes with it. Playwright's driver ends the browser and its children when
the block ends, and when this process does, however that dies. While the block lasts the thread has a running loop
(Playwright's): tests of asyncio cannot run in it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from onefold.testing.servers import ServerUnavailable
from tests.support.debian_packages import install_package
from tests.support.patience import PATIENCE_S


@contextmanager
def open_chromium() -> Iterator[Browser]:
    """A browser without windows, for as long as the block lasts."""
    program = find_chromium()
    with tempfile.TemporaryDirectory(prefix="onefold-chromium-", ignore_cleanup_errors=True) as home:
        # What it writes beside its profile (crash reports, caches, locks) stays out of the home of who runs the tests.
        places = {"HOME": home, "TMPDIR": home, "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home}
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=program,
                # Chromium's sandbox refuses to run as root.
                chromium_sandbox=os.geteuid() != 0,
                args=["--disable-dev-shm-usage", "--font-render-hinting=none"],
                env={**os.environ, **places},
                timeout=PATIENCE_S * 1000,
            )
            try:
                yield browser
            finally:
                browser.close()


def find_chromium() -> Path:
    found = shutil.which("chromium")
    if found is None:
        raise ServerUnavailable("no chromium: the way out, on Debian and as root, is `make chromium`")
    return Path(found)


if __name__ == "__main__":
    install_package("chromium")
