"""Whether a driver may be used through its private names, where those are faster than its public API.

Invariant: private names are used only in minor versions that the tests have run with. Any other version, and every
version where the environment says ONEFOLD_PUBLIC_DRIVERS=1, goes through the public API.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from importlib.metadata import PackageNotFoundError, version
from typing import Final

#: An environment variable, not an argument: an operator who suspects a fast path turns it off without a release.
PUBLIC_ONLY: Final = "ONEFOLD_PUBLIC_DRIVERS"


def may_use_private_names(distribution: str, tested: Collection[tuple[int, int]]) -> bool:
    """`tested` are minor versions, such as (2, 16). The caller checks that the names themselves are there."""
    if os.environ.get(PUBLIC_ONLY, "") not in ("", "0"):
        return False
    try:
        found = re.match(r"(\d+)\.(\d+)", version(distribution))
    except PackageNotFoundError:  # vendored, or on the path without its metadata: its version is unknown
        return False
    return found is not None and (int(found[1]), int(found[2])) in tested
