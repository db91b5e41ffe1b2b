"""The pages of the console, a module for each section."""

from __future__ import annotations

from typing import Final

from onefold._console.pages import (
    audit_page,
    dead_letters_page,
    health_page,
    key_pages,
    outbox_page,
    overview_page,
    sagas_page,
    works_page,
)
from onefold._console.sections import Section

#: In the order of the navigation. The first is where the console begins.
SECTIONS: Final[tuple[Section, ...]] = (
    overview_page.SECTION,
    key_pages.SECTION,
    outbox_page.SECTION,
    dead_letters_page.SECTION,
    works_page.SECTION,
    sagas_page.SECTION,
    health_page.SECTION,
    audit_page.SECTION,
)  # fmt: skip
