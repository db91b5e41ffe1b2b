"""docs/http-contract.md is the contract as the tests have it."""

from __future__ import annotations

from tests.contract.page import PAGE, SECTIONS, page
from tests.contract.rows import ROWS


def test_the_page_in_docs_is_the_one_that_is_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.contract.page"


def test_every_row_stands_in_one_section_of_the_page() -> None:
    assert sorted(row for rows in SECTIONS.values() for row in rows) == sorted(ROWS)
