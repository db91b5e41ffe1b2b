"""A page for each problem, from its section in docs/problems.md and the errors that are answered with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from book.files import PROBLEMS
from book.tables import code, write_table
from onefold._http import status_pages as pages
from onefold._http.condition_errors import ConditionFailed
from onefold._http.problems import TYPE_PREFIX
from onefold._idempotency.encryption import UnreadableAnswer
from onefold.errors import AnsweredError

PARTS: Final = ("Cause", "Client", "Operator")


def read_sections(text: str = PROBLEMS) -> dict[str, str]:
    """The text of each problem, by its name."""
    found = re.split(r"^## ([\w-]+)\n", text, flags=re.MULTILINE)
    return dict(zip(found[1::2], map(str.strip, found[2::2]), strict=True))


def find_gaps(text: str = PROBLEMS) -> Iterator[str]:
    """What is missing from the texts, or is there for nothing."""
    sections = read_sections(text)
    names = [name for _, name, _ in pages.PROBLEMS]
    yield from (f"{name} has no section" for name in names if name not in sections)
    yield from (f"{name} is no problem" for name in sections if name not in names)
    for name, section in sections.items():
        yield from (f"{name} has no **{part}.**" for part in PARTS if f"**{part}.**" not in section)


def make_index() -> str:
    """The page of all: in place of the sections, a table of their pages."""
    retryable = _find_retryable()
    head = PROBLEMS.partition("\n## ")[0]
    return f"{head}\n\n" + write_table(
        ["status", "problem", "retryable", "meaning"],
        (
            (status, f"[{name}](problems/{name}.md)", "yes" if name in retryable else "no", meaning)
            for status, name, meaning in pages.PROBLEMS
        ),
    )


def make_pages() -> dict[str, str]:
    """The page of each, by its address."""
    sections, retryable = read_sections(), _find_retryable()
    made = {}
    for status, name, meaning in pages.PROBLEMS:
        text = f"# {name}\n\n{meaning}\n\n" + write_table(
            ["type", "status", "retryable"],
            [
                (
                    code(TYPE_PREFIX + name),
                    status,
                    "yes, after `Retry-After`, with the same key" if name in retryable else "no",
                )
            ],
        )
        body = re.sub(r"\]\((?![a-z]+:|#)", "](../", sections.get(name, ""))
        for part, title in zip(PARTS, ("Cause", "What the client does", "What the operator does"), strict=True):
            body = body.replace(f"**{part}.** ", f"## {title}\n\n")
        made[f"problems/{name}.md"] = f"{text}{body}\n"
    return made


def _find_retryable() -> set[str]:
    """Errors are known below AnsweredError once their modules are imported."""
    found: set[type[AnsweredError]] = {*_list_errors(AnsweredError), ConditionFailed, UnreadableAnswer}
    return {each.slug for each in found if each.retryable}


def _list_errors(kind: type[AnsweredError]) -> Iterator[type[AnsweredError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _list_errors(each)
