"""`onefold docs`: every page that something of onefold names is there, and so is every section."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import onefold as package
from onefold._cli.docs import leave_out_comments
from tests.cli.commands import onefold

SOURCE = Path(package.__file__).parent
DOCS = SOURCE.parents[1] / "docs"


def test_pages_are_listed_and_printed() -> None:
    listed = [line.split()[0] for line in onefold("docs").stdout.splitlines()]
    pages = [str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")]
    assert listed == sorted(["readme", *pages])
    assert onefold("docs", "README").stdout == (DOCS.parent / "README.md").read_text()
    assert "why/why-409" in listed
    assert onefold("docs", "testing").stdout == (DOCS / "testing.md").read_text()
    assert onefold("docs", "docs/Testing.md").stdout == (DOCS / "testing.md").read_text()


def test_comments_for_the_build_are_left_out_and_nothing_else() -> None:
    assert "<!--" in (DOCS / "storms.md").read_text()
    for page in DOCS.rglob("*.md"):
        text, printed = page.read_text(), leave_out_comments(page.read_text())
        assert "<!--" not in printed, page
        kept = [line for line in text.splitlines() if line and not line.startswith("<!--")]
        assert [line for line in printed.splitlines() if line] == kept
    assert onefold("docs", "storms").stdout == leave_out_comments((DOCS / "storms.md").read_text())
    assert leave_out_comments("a\n\n<!-- x -->\n\nb\n\n\nc\n") == "a\n\nb\n\n\nc\n"
    assert leave_out_comments("<!-- x -->\n|a|\n<!-- end -->\n\n<!-- y -->\n|b|\n") == "|a|\n\n|b|\n"


def test_a_section_ends_where_the_next_one_begins_and_comments_of_programs_are_no_headings() -> None:
    assert onefold("docs", "metrics", "onefoldnorelay").stdout.startswith("### OnefoldNoRelay\n\nEvents wait")
    section = onefold("docs", "sagas", "A saga").stdout
    assert "# orders.py" in section
    assert "reserve order-42:reserve" in section, "what follows the comment"
    assert "## Changing a saga" not in section
    alerts = onefold("docs", "metrics", "A dashboard and alerts").stdout
    assert "### OnefoldNoRelay" in alerts, "sections inside"


def test_what_is_not_there_is_told_with_what_is() -> None:
    assert "architecture" in (ran := onefold("docs", "nowhere")).stderr
    assert ran.returncode == 2
    assert "did you mean 'production'?" in " ".join((ran := onefold("docs", "prodution", COLUMNS="200")).stderr.split())
    assert ran.returncode == 2
    assert "OnefoldNoRelay" in (ran := onefold("docs", "metrics", "nowhere")).stderr
    assert ran.returncode == 2


def program_texts() -> Iterator[str]:
    """What programs say: every text in the code that documents nothing, and the alert rules."""
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        told = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in told:
                yield node.value
    yield (SOURCE / "_observe" / "alerts.yml").read_text()


def test_programs_name_pages_by_the_command_that_prints_them() -> None:
    """A wheel has no folder docs/."""
    assert not [text for text in program_texts() if re.search(r"docs/[\w-]+\.md", text)]


def test_pages_and_sections_that_programs_name_are_there() -> None:
    named = {pair for text in program_texts() for pair in re.findall(r"`?onefold docs ([a-z-]+)(?: (\w+))?", text)}
    assert {("postgres", ""), ("metrics", "OnefoldNoRelay")} <= named
    for page, section in named - {("metrics", "ALERT")}:
        text = (DOCS / f"{page}.md").read_text()
        assert not section[:1].isupper() or f"# {section}\n" in text, (page, section)
