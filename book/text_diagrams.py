"""Diagrams that are drawn with characters in a block of `diagram`: lines and arrows become SVG, all else stays text.

In the checkout they are read as they are; on the site they are drawn, and the characters are kept below them for those
who cannot see a drawing, or want to copy it.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any, Final

CELL_W: Final = 7.8
CELL_H: Final = 18.0

#: What a line may go on with in a neighbouring cell.
_ACROSS: Final = frozenset("-+<>|'.")
_UPRIGHT: Final = frozenset("|+v^'.")


class _Grid:
    """The characters, with blanks all around."""

    def __init__(self, text: str) -> None:
        self.rows = text.rstrip("\n").split("\n")
        self.width = max(map(len, self.rows))

    def at(self, row: int, column: int) -> str:
        if 0 <= row < len(self.rows) and 0 <= column < len(self.rows[row]):
            return self.rows[row][column]
        return " "

    def find_sides(self, row: int, column: int) -> str:
        """To which sides (of l, r, u, d) the character is a line; "" where it is text."""
        left, right = self.at(row, column - 1), self.at(row, column + 1)
        above, below = self.at(row - 1, column), self.at(row + 1, column)
        across = ("l" if left in "-<" else "") + ("r" if right in "->" else "")
        match self.at(row, column):
            case "-" if left in _ACROSS - {"'", "."} or right in _ACROSS - {"'", "."}:
                return "lr"
            case ">" if left == "-":
                return "l"
            case "<" if right == "-":
                return "r"
            case "|":
                return across + "ud"
            case "+" if across:
                return across + ("u" if above in _UPRIGHT else "") + ("d" if below in _UPRIGHT else "")
            case "'" if across and above in _UPRIGHT:
                return across + "u"
            case "." if across and below in _UPRIGHT:
                return across + "d"
            case "v" if above in "|+" and not (left + right).strip():
                return "u"
            case "^" if below in "|+" and not (left + right).strip():
                return "d"
            case _:
                return ""


def draw(text: str) -> str:
    """The drawing as SVG. It takes its colours from the page, so that it is read on light and on dark."""
    grid = _Grid(text)
    width, height = grid.width * CELL_W, len(grid.rows) * CELL_H
    lines, heads, words = "".join(_draw_lines(grid)), "".join(_draw_heads(grid)), "".join(_draw_words(grid))
    return (
        f'<svg class="diagram" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
        f'aria-hidden="true"><path class="line" d="{lines}"/><path class="head" d="{heads}"/>{words}</svg>'
    )


def format_fence(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """What pymdownx.superfences calls for a block of `diagram`."""
    return (
        f'<figure class="diagram">{draw(source)}<details><summary>The drawing as text</summary>'
        f"<pre>{escape(source)}</pre></details></figure>"
    )


def _find_cells(grid: _Grid) -> Iterator[tuple[int, int, str]]:
    for row, line in enumerate(grid.rows):
        for column in range(len(line)):
            if sides := grid.find_sides(row, column):
                yield row, column, sides


def _draw_lines(grid: _Grid) -> Iterator[str]:
    for row, column, sides in _find_cells(grid):
        x, y = (column + 0.5) * CELL_W, (row + 0.5) * CELL_H
        ends = {"l": (x - CELL_W / 2, y), "r": (x + CELL_W / 2, y), "u": (x, y - CELL_H / 2), "d": (x, y + CELL_H / 2)}
        yield from (f"M{x:g} {y:g}L{ends[side][0]:g} {ends[side][1]:g}" for side in sides)


#: How an arrow's head is drawn around the middle of its cell.
_HEADS: Final = {
    ">": "m4 0l-8 -4v8z",
    "<": "m-4 0l8 -4v8z",
    "v": "m0 4l-4 -8h8z",
    "^": "m0 -4l-4 8h8z",
}


def _draw_heads(grid: _Grid) -> Iterator[str]:
    for row, column, _ in _find_cells(grid):
        if head := _HEADS.get(grid.at(row, column)):
            yield f"M{(column + 0.5) * CELL_W:g} {(row + 0.5) * CELL_H:g}{head}"


def _draw_words(grid: _Grid) -> Iterator[str]:
    """Each word at its place and as wide as its characters: columns stay columns in any font."""
    for row, line in enumerate(grid.rows):
        kept = "".join(" " if grid.find_sides(row, column) else sign for column, sign in enumerate(line))
        column = 0
        for word in kept.split(" "):
            if word:
                x, y = column * CELL_W, (row + 0.7) * CELL_H
                width = len(word) * CELL_W
                yield f'<text x="{x:g}" y="{y:g}" textLength="{width:g}">{escape(word)}</text>'
            column += len(word) + 1
