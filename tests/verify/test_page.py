"""docs/verify.md lists the checks that there are."""

from __future__ import annotations

import re
from pathlib import Path

from onefold._verify.catalogue import CHECKS
from onefold._verify.profiles import PROFILES

PAGE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()


def test_the_page_lists_the_checks_with_their_promises() -> None:
    table = PAGE.partition("## The checks")[2]
    listed = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    assert listed == [(check.name, check.asked, check.promise) for check in CHECKS]


def test_the_page_names_the_checks_of_a_canary() -> None:
    [named] = re.findall(r"the checks that matter most \(([^)]+)\)", PAGE)
    assert re.findall(r"`([\w-]+)`", named) == [check.name for check in CHECKS if check.canary]


def test_every_profile_leaves_out_checks_that_exist() -> None:
    for profile in PROFILES.values():
        assert profile.left_out.keys() <= {check.name for check in CHECKS}
        assert f"`{profile.name}`" in PAGE


def test_the_result_that_the_page_shows_has_all_checks() -> None:
    figures, _consumer = re.findall(r"(\d+) passed, (\d+) failed, (\d+) skipped;", PAGE)
    assert sum(map(int, figures)) == len(CHECKS)
