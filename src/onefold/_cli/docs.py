"""`onefold docs`: prints the pages of the installed version; alerts and errors name them by this command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

import onefold
from onefold._cli.options import JSON
from onefold._cli.output import print_json


def command(
    page: Annotated[str | None, typer.Argument(help="The page; without one, all are listed.")] = None,
    section: Annotated[str | None, typer.Argument(help="Only the section under this heading.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print a page of the documentation, or a section of it: `onefold docs metrics OnefoldNoRelay`."""
    pages = find_pages()
    if page is None:
        titles = {
            each: file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for each, file in pages.items()
        }
        if as_json:
            print_json(titles)
            return
        for each, title in titles.items():
            typer.echo(f"{each:<24} {title}")
        return
    name = page.casefold().removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        from difflib import get_close_matches

        close = get_close_matches(name, pages, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(pages)}"
        raise typer.BadParameter(f"there is no page {page!r}; {hint}")
    text = leave_out_comments(pages[name].read_text(encoding="utf-8"))
    if section is not None:
        text = find_section(text, section)
    if as_json:
        print_json({"page": name, "section": section, "text": text})
    else:
        typer.echo(text, nl=False)


def find_pages() -> dict[str, Traversable]:
    """Each page by its name: in the installed package, or in the checkout that this is run from."""
    folder = files("onefold") / "_docs"
    if folder.is_dir():
        return dict(sorted(_pages_below(folder, "")))
    root = Path(onefold.__file__).parents[2]
    return dict(sorted((("readme", root / "README.md"), *_pages_below(root / "docs", ""))))


def _pages_below(folder: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _pages_below(each, f"{path}{each.name}/")
        elif each.name.endswith(".md"):
            yield path + each.name.removesuffix(".md"), each


def leave_out_comments(text: str) -> str:
    """Without the lines that only the build of the site reads: where a diagram goes, where a table is made anew."""
    return re.sub(r"(?<=\n\n)<!-- .* -->\n\n|^<!-- .* -->\n", "", text, flags=re.MULTILINE)


def find_section(text: str, heading_text: str) -> str:
    """From its heading to the next one of its level, or above."""
    section: list[str] = []
    titles: list[str] = []
    level, fenced = 0, False
    for line in text.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        heading = None if fenced else re.fullmatch(r"(#+) (.*)\n", line)
        if heading is not None:
            titles.append(heading[2])
            if section and len(heading[1]) <= level:
                break
            if not section and heading[2].casefold() == heading_text.casefold():
                level = len(heading[1])
        if level:
            section.append(line)
    if not section:
        raise typer.BadParameter(f"the page has no section {heading_text!r}; it has {', '.join(map(repr, titles[1:]))}")
    return "".join(section).rstrip() + "\n"
