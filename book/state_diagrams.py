"""Draws state machines as SVG: boxes in a grid, an arrow for each change, and the same as text for screen readers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Final

from book.state_machines import Change, Machine, make_machines
from book.tables import write_table

_BOX_W: Final = 215
_BOX_H: Final = 66
_PITCH_X: Final = 385
_PITCH_Y: Final = 180
_MARGIN: Final = 46
#: Two arrows between the same boxes lie so far from the middle.
_APART: Final = 13

_MARK = re.compile(r"^<!-- states: (\w+) -->$", re.MULTILINE)


def place_diagrams(markdown: str) -> str:
    """The page with a drawing in the place of each `<!-- states: NAME -->`."""
    machines = make_machines() if _MARK.search(markdown) else {}
    return _MARK.sub(lambda found: draw_figure(found[1], machines[found[1]]), markdown)


def draw_figure(name: str, machine: Machine) -> str:
    """The drawing, and below it what it says."""
    rows = [f"<li>{escape(one.before)} → {escape(one.after)}: {escape(one.cause)}</li>" for one in machine.changes]
    return (
        f'<figure class="diagram">{draw(name, machine)}<details><summary>The drawing as text</summary>'
        f"<ul>{''.join(rows)}</ul></details></figure>"
    )


def draw(name: str, machine: Machine) -> str:
    columns = 1 + max(column for column, _ in machine.places.values())
    rows = 1 + max(row for _, row in machine.places.values())
    width = 2 * _MARGIN + (columns - 1) * _PITCH_X + _BOX_W
    height = 2 * _MARGIN + (rows - 1) * _PITCH_Y + _BOX_H
    merged = list(_merge(machine))
    pairs = {(change.before, change.after) for change in merged}
    arrows = "".join(
        _draw_arrow(machine, change, has_return=(change.after, change.before) in pairs) for change in merged
    )
    boxes = "".join(_draw_boxes(machine))
    return (
        f'<svg class="diagram" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-labelledby="states-{name}"><title id="states-{name}">{escape(_describe(machine))}</title>'
        f'<defs><marker id="head-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path class="head" d="M0 0L10 5L0 10z"/></marker></defs>'
        f"{arrows.replace('url(#head)', f'url(#head-{name})')}{boxes}</svg>"
    )


def make_page() -> str:
    """All of them, each with its table."""
    parts = [
        "# States\n\nWhat a request, a message, a work in steps and a breaker can be, and what leads from one state to "
        "another. Drawn from the modules that decide.\n\n"
    ]
    for name, machine in make_machines().items():
        parts.append(f"## {machine.title}\n\nDecided in `{machine.source}`.\n\n{draw_figure(name, machine)}\n\n")
        parts.append(write_table(("state", "there"), [(s, "; ".join(machine.notes[s])) for s in machine.places]))
        changes = [(change.before, change.cause, change.after) for change in machine.changes]
        parts.append(write_table(("from", "because", "to"), changes))
    return "".join(parts)


def _describe(machine: Machine) -> str:
    changes = "; ".join(f"{one.before} to {one.after}: {one.cause}" for one in machine.changes)
    return f"{machine.title}. {changes}."


def _find_middle(machine: Machine, state: str) -> tuple[float, float]:
    column, row = machine.places[state]
    return _MARGIN + column * _PITCH_X + _BOX_W / 2, _MARGIN + row * _PITCH_Y + _BOX_H / 2


def _draw_boxes(machine: Machine) -> Iterator[str]:
    for state in machine.places:
        x, y = _find_middle(machine, state)
        yield f'<rect x="{x - _BOX_W / 2:g}" y="{y - _BOX_H / 2:g}" width="{_BOX_W}" height="{_BOX_H}" rx="8"/>'
        lines = [state.partition(":")[0], *machine.notes[state]]
        first = y - 8 * (len(lines) - 1) + 4
        for number, line in enumerate(lines):
            style = ' class="state"' if number == 0 else ' class="note"'
            yield f'<text x="{x:g}" y="{first + 16 * number:g}"{style}>{escape(line)}</text>'


def _merge(machine: Machine) -> Iterator[Change]:
    """One arrow from a state to another, however many causes it has."""
    causes: dict[tuple[str, str], list[str]] = {}
    for change in machine.changes:
        causes.setdefault((change.before, change.after), []).append(change.cause)
    for (before, after), several in causes.items():
        yield Change(before, ", or ".join(several), after)


def _draw_arrow(machine: Machine, change: Change, *, has_return: bool) -> str:
    (x1, y1), (x2, y2) = _find_middle(machine, change.before), _find_middle(machine, change.after)
    if change.before == change.after:
        return _draw_loop(x1, y1, change.cause)
    apart = _APART if has_return else 0
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    # To the left of its direction: the one that comes back is then on the other side.
    aside = apart * (y2 - y1) / length, -apart * (x2 - x1) / length
    (bx, by), (ex, ey) = _leave(x1, y1, x2 - x1, y2 - y1, aside), _leave(x2, y2, x1 - x2, y1 - y2, aside)
    x, y, anchor = (bx + ex) / 2, (by + ey) / 2, "middle"
    if y1 == y2:
        y += -7 if aside[1] <= 0 else 16
    elif x1 == x2:
        anchor = "start" if aside[0] >= 0 else "end"
        x += 8 if aside[0] >= 0 else -8
    else:
        # Over the slope, on the side to which the arrow was moved.
        x, y = x + aside[0], y + aside[1] + 4
    return (
        f'<path class="line" d="M{bx:g} {by:g}L{ex:g} {ey:g}" marker-end="url(#head)"/>'
        f'<text class="cause" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(change.cause)}</text>'
    )


def _draw_loop(x: float, y: float, cause: str) -> str:
    top = y - _BOX_H / 2
    curve = f"M{x - 20:g} {top:g}C{x - 30:g} {top - 34:g} {x + 30:g} {top - 34:g} {x + 20:g} {top:g}"
    return (
        f'<path class="line" d="{curve}" marker-end="url(#head)"/>'
        f'<text class="cause" x="{x:g}" y="{top - 31:g}" text-anchor="middle">{escape(cause)}</text>'
    )


def _leave(x: float, y: float, across: float, down: float, aside: tuple[float, float]) -> tuple[float, float]:
    """Where a line that begins beside the middle of a box crosses its border."""
    shares = [
        (half - offset * (1 if way > 0 else -1)) / abs(way)
        for half, offset, way in ((_BOX_W / 2, aside[0], across), (_BOX_H / 2, aside[1], down))
        if way
    ]
    return x + aside[0] + across * min(shares), y + aside[1] + down * min(shares)
