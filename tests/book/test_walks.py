"""Pages whose steps build on each other are true: they are walked from top to bottom, and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.book.page_walk import WALKED, walking

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", WALKED)
def test_a_page_happens_as_printed(page: str, tmp_path: Path, postgres_dsn: str) -> None:
    # Managed servers hand out URLs with it: a program to be copied takes one.
    given = f"{postgres_dsn}?sslmode=disable" if page == "production.md" else postgres_dsn
    with walking(tmp_path, DATABASE_URL=given) as walk:
        walk.walk((ROOT / "docs" / page).read_text())
    assert page != "tutorial.md" or walk.jobs.keys() == {"uvicorn", "relay", "consume"}


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        ("```console\n$ python one.py\n2\n```\n", "should print\n2"),
        ("```console\n$ rm -rf /\n```\n", "does not know"),
        ("```python\nprint(1)\n```\n", "without a name"),
    ],
)
def test_what_a_page_does_not_do_is_found(planted: str, found: str, tmp_path: Path) -> None:
    with walking(tmp_path) as walk:
        walk.walk("```python\n# one.py\nprint(1)\n```\n\n```console\n$ python one.py\n1\n```\n")
        with pytest.raises(AssertionError, match=found):
            walk.walk(planted)
