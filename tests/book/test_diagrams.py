"""Diagrams are drawn by the build: their states are those of the code, and characters become lines."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Literal, get_args

import pytest

from book.state_diagrams import draw_figure, make_page, place_diagrams
from book.state_machines import Machine, drive_breaker, make_machines, read_table
from book.text_diagrams import draw, format_fence
from onefold._idempotency import model as requests
from onefold._inbox import schema
from onefold._inbox.processing_trace import _OUTCOMES as OUTCOMES
from onefold._policy.breaker import Breaker, State
from onefold._steps import model as works

DOCS = Path(__file__).parents[2] / "docs"


def names(machine: Machine) -> set[str]:
    return {side for change in machine.changes for side in (change.before, change.after)}


def test_every_state_that_is_drawn_is_one_of_the_code_and_is_led_to() -> None:
    machines = make_machines()
    assert machines["request"].places.keys() == read_table(requests.__doc__).keys()
    assert machines["work"].places.keys() == read_table(works.__doc__).keys()
    assert machines["breaker"].places.keys() == set(get_args(State))
    kept = set(re.findall(r"'(\w+)'", re.findall(r"CHECK \(state IN \((.*?)\)", schema.POSTGRES[3][3])[0]))
    assert kept == {"waiting", "dead"} <= machines["message"].places.keys()
    for machine in machines.values():
        assert machine.places.keys() == machine.notes.keys() == names(machine)


def test_a_claim_gets_in_the_drawing_what_it_gets_in_the_code() -> None:
    for model, claims in ((requests, requests.Claim), (works, works.WorkClaim)):
        said = " ".join(cell for row in read_table(model.__doc__).values() for cell in row)
        kinds = {kind.__name__ for kind in get_args(claims)}
        assert kinds == set(re.findall(r"\b[A-Z]\w+", said))
    causes = " ".join(change.cause for change in make_machines()["message"].changes)
    assert not [outcome for outcome in OUTCOMES.values() if outcome not in causes]


def test_the_breaker_is_drawn_as_it_behaves() -> None:
    assert {(change.before, change.after) for change in drive_breaker()} == {
        ("closed", "open"),
        ("open", "half-open"),
        ("half-open", "closed"),
        ("half-open", "open"),
    }


class StaysOpen(Breaker):
    """A planted bug: it is never asked again."""

    def state(self, now: float) -> Literal["closed", "open", "half-open"]:
        return "closed" if self.closed_permit is not None else "open"


def test_a_breaker_that_behaves_otherwise_is_not_drawn() -> None:
    with pytest.raises(AssertionError, match="should be half-open is open"):
        list(drive_breaker(lambda: StaysOpen(lambda: 0.5)))


def test_a_drawing_of_states_can_be_read_without_seeing_it() -> None:
    for name, machine in make_machines().items():
        drawn = draw_figure(name, machine)
        [title] = re.findall(rf'<title id="states-{name}">(.*?)</title>', drawn)
        assert f'role="img" aria-labelledby="states-{name}"' in drawn
        for change in machine.changes:
            assert f"{change.before} to {change.after}: {change.cause}" in unescape(title)
        assert drawn.count("<rect") == len(machine.places)
        assert f"## {machine.title}" in make_page()


def test_pages_have_the_drawings_they_ask_for() -> None:
    marked = {
        mark
        for page in DOCS.rglob("*.md")
        for mark in re.findall(r"<!-- states: (\w+) -->", page.read_text(encoding="utf-8"))
    }
    assert marked == make_machines().keys()
    assert place_diagrams("a\n\n<!-- states: breaker -->\n\nb\n").count("<svg") == 1


ART = """\
 a user's half-open door   (at-least-once, a | b)
+------+   one -> two
| box  |-------.
+--|---+       |
   v           |
 below  <------'
"""


def test_lines_and_arrows_are_drawn_and_words_stay_words() -> None:
    drawn = draw(ART)
    words = [unescape(word) for word in re.findall(r"<text [^>]*>(.*?)</text>", drawn)]
    assert words == ["a", "user's", "half-open", "door", "(at-least-once,", "a", "b)", "one", "two", "box", "below"]
    heads = re.findall(r'class="head" d="(.*?)"', drawn)[0]
    assert heads.count("z") == 3  # to two, down to below, and to below from the right
    assert ART.replace("'", "&#x27;").replace(">", "&gt;").replace("<", "&lt;") in format_fence(ART, "", "", None, None)


def test_no_page_draws_with_characters_in_a_block_that_is_not_drawn() -> None:
    blocks = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    drawn = [
        (page.name, language)
        for page in DOCS.rglob("*.md")
        for language, block in blocks.findall(page.read_text(encoding="utf-8"))
        if re.search(r"\+--.*\+$|--+>", block, re.MULTILINE)
    ]
    assert ("architecture.md", "diagram") in drawn
    assert {language for _, language in drawn} == {"diagram"}, drawn
