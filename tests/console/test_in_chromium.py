"""The console of the demo shop in a real browser: four questions are answered by clicking, as a person would.

ONEFOLD_SCREENSHOTS=1 has these tests write the pictures of docs/console.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "console"
CONTRAST = (Path(__file__).parent / "contrast.js").read_text()

STRUCTURE = (Path(__file__).parent / "structure.js").read_text()

SECTIONS = ("/overview", "/keys", "/dead-letters", "/works", "/outbox", "/sagas", "/audit", "/health")

DESK: ViewportSize = {"width": 1100, "height": 760}

expect.set_options(timeout=PATIENCE_S * 1000)


class OpenShop(NamedTuple):
    """What the demo said when it invited us."""

    said: str
    sign_in: str
    root: str


@pytest.fixture(scope="module")
def shop(chromium: Browser) -> Iterator[OpenShop]:
    """`make demo STAY=1`, on SQLite, with few customers."""
    options = ["--stay", "--seed", "7", "--orders", "12", "--seconds", "1", "--kills", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "examples.shop.demo", *options],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as running:
        try:
            assert running.stdout is not None
            said = ""
            while "\n  processor: " not in said:
                line = running.stdout.readline()
                assert line, f"the demo ended: {said}"
                said += line
            found = re.search(r"The console: (\S+)", said)
            assert found is not None, said
            yield OpenShop(said, found[1], found[1].partition("/login")[0])
            out, _ = running.communicate("\n", timeout=PATIENCE_S)
            assert running.returncode == 0, said + out
        finally:
            running.kill()


@contextmanager
def opened(chromium: Browser, shop: OpenShop, **settings: Any) -> Iterator[Page]:
    """A page of somebody who signed in. An error of the browser (a policy that was broken, a script) is a failure, and
    so is a request to another place."""
    settings = {"viewport": DESK, "locale": "en-GB", **settings}
    context: BrowserContext = chromium.new_context(**settings)
    context.set_default_timeout(PATIENCE_S * 1000)
    wrong: list[str] = []
    context.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    context.on("request", lambda sent: None if sent.url.startswith((shop.root, "data:")) else wrong.append(sent.url))
    page = context.new_page()
    page.goto(shop.sign_in)
    page.get_by_label("Your name").fill("Ada")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    try:
        yield page
    finally:
        context.close()
    assert wrong == []


def click_section(page: Page, name: str) -> None:
    page.get_by_role("navigation", name="Sections").get_by_role("link", name=name, exact=True).click()


def find_key(page: Page, shop: OpenShop, question: str) -> None:
    """Type what the invitation says behind a question."""
    found = re.search(re.escape(question) + r"\s+Keys: principal (.+), route (.+), key (\S+)", shop.said)
    assert found is not None, shop.said
    click_section(page, "Keys")
    for label, typed in zip(("Principal", "Route", "Idempotency-Key"), found.groups(), strict=True):
        page.get_by_label(label, exact=True).fill(typed)
    page.get_by_role("button", name="Find").click()


def reload_until(page: Page, text: str) -> None:
    """What processes of the shop bring about comes when it comes."""
    give_up_at = time.monotonic() + PATIENCE_S
    while text not in page.inner_text("main"):
        assert time.monotonic() < give_up_at, page.content()
        page.wait_for_timeout(200)
        page.reload()


#: Paths of the machine that takes a picture are none of its readers' business.
NEUTRAL = """root => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
        texts.currentNode.data = texts.currentNode.data
            .replaceAll(root, "/srv").replace(/\\/[^' ]*onefold-shop-\\w+/g, "/srv/shop")
            .replace(/\\/[^" ]*\\/site-packages/g, "/srv/site-packages");
}"""


def picture(page: Page, name: str, height: int | None = None) -> None:
    """For the docs, where it is asked for."""
    if os.environ.get("ONEFOLD_SCREENSHOTS"):
        PICTURES.mkdir(exist_ok=True)
        page.evaluate(NEUTRAL, str(ROOT))
        if height is not None:
            page.set_viewport_size({**DESK, "height": height})
        page.evaluate("document.activeElement?.blur()")
        path = PICTURES / f"{name}.png"
        page.screenshot(path=path, animations="disabled")
        with Image.open(path) as taken:  # a third of its size, and no difference that is seen
            taken.convert("RGB").quantize(96).save(path, optimize=True)


def test_what_happened_to_a_key(chromium: Browser, shop: OpenShop) -> None:
    with opened(chromium, shop) as page:
        find_key(page, shop, "What happened to a key?")
        expect(page.get_by_text("POST /orders", exact=True)).to_be_visible()
        expect(page.get_by_text("A retry gets")).to_be_visible()
        picture(page, "key")
        page.get_by_role("button", name="Show it").click()
        expect(page.get_by_text('"state":"placed"')).to_be_visible()


def test_why_does_a_client_get_409_and_what_is_stuck(chromium: Browser, shop: OpenShop) -> None:
    """A request that waits for a person is let go on, and a dead letter is redriven, dead again, and discarded. Both
    questions in one test: what the second does ends what the first looks at."""
    with opened(chromium, shop) as page:
        find_key(page, shop, "Why does a client get 409?")
        expect(page.get_by_text("Why 409")).to_be_visible()
        expect(page.get_by_text("How it ends")).to_be_visible()
        picture(page, "conflict")

        click_section(page, "Works")
        expect(page.get_by_role("row", name="parked")).to_be_visible()
        page.get_by_role("row", name="parked").get_by_role("link").click()
        expect(page.get_by_text("outcome unknown").first).to_be_visible()
        picture(page, "work")
        page.get_by_label("It was made, and returned").check()
        page.get_by_label("Result", exact=True).fill('"V-100"')
        page.get_by_label("Reason", exact=True).fill("the printer has printed it")
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("heading", name="is resumed")).to_be_visible()

        click_section(page, "Dead letters")
        reload_until(page, "Dead letters of payments")
        reload_until(page, "order.placed")
        page.get_by_role("row", name="order.placed").get_by_role("link").first.click()
        expect(page.get_by_text("It is not tried again")).to_be_visible()
        expect(page.get_by_role("heading", name="Compare attempts")).to_be_visible()
        picture(page, "dead-letter")
        page.get_by_role("link", name="free-of-charge").click()
        expect(page.get_by_role("cell", name="request POST /orders")).to_be_visible()
        expect(page.get_by_role("link", name="a dead letter, waits for a person")).to_be_visible()
        picture(page, "timeline")
        page.go_back()
        page.get_by_role("link", name="Redrive…").click()
        expect(page.get_by_text("1 message, first")).to_be_visible()
        picture(page, "redrive")
        page.get_by_label("Reason", exact=True).fill("perhaps the processor takes it now")
        page.get_by_role("button", name="Redrive", exact=True).click()
        reload_until(page, "some dead again")
        page.get_by_role("link", name="payments").click()
        page.get_by_role("link", name="Discard all…").click()
        page.get_by_label("Reason", exact=True).fill("an order for 0 is a mistake")
        page.get_by_role("button", name="Discard for good").click()
        expect(page.get_by_text("Discarded: 1.")).to_be_visible()

        click_section(page, "Audit")
        for why in ("an order for 0 is a mistake", "the printer has printed it"):
            expect(page.get_by_text(why)).to_be_visible()
        expect(page.get_by_role("cell", name="Ada").first).to_be_visible()


def test_what_was_absorbed_today(chromium: Browser, shop: OpenShop) -> None:
    with opened(chromium, shop) as page:
        page.get_by_role("link", name="Last 24 hours").click()
        expect(page.get_by_text("Duplicates absorbed")).to_be_visible()
        expect(page.get_by_role("row", name="POST /orders").first).to_be_visible()
        page.get_by_role("link", name="Last hour").click()
        expect(page.get_by_role("row", name="POST /orders").first).to_be_visible()
        picture(page, "overview", height=1118)


@pytest.fixture(scope="module")
def looks(chromium: Browser, shop: OpenShop) -> dict[str, dict[str, Any]]:
    """What is wrong with each page, as a person sees it. Each is loaded once, and looked at in light, in the dark and
    on a phone."""
    found: dict[str, dict[str, Any]] = {}
    with opened(chromium, shop) as page:
        for section in SECTIONS:
            page.goto(shop.root + section)
            found[section] = {"light": page.evaluate(CONTRAST), "structure": page.evaluate(STRUCTURE)}
            if section == "/health":
                picture(page, "health")
            page.emulate_media(color_scheme="dark")
            found[section]["dark"] = page.evaluate(CONTRAST)
            if section == "/overview":
                picture(page, "dark")
            page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 360, "height": 740})
            found[section]["width"] = page.evaluate("document.documentElement.scrollWidth")
            if section == "/overview":
                picture(page, "phone")
            page.set_viewport_size(DESK)
    return found


def test_on_a_phone_no_page_is_wider_than_the_screen(looks: dict[str, dict[str, Any]]) -> None:
    assert {section: seen["width"] for section, seen in looks.items() if seen["width"] > 360} == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(looks: dict[str, dict[str, Any]], scheme: str) -> None:
    assert {section: seen[scheme] for section, seen in looks.items() if seen[scheme]} == {}


def test_control_text_that_is_hard_to_read_is_found(chromium: Browser) -> None:
    page = chromium.new_page()
    page.set_content('<body style="background: #fff"><p style="color: #999">pale</p><p style="color: #000">dark</p>')
    assert page.evaluate(CONTRAST) == ["pale: 2.85"]
    page.close()


def test_headings_landmarks_labels_and_the_reach_of_the_keyboard_on_every_page(
    looks: dict[str, dict[str, Any]],
) -> None:
    assert {section: seen["structure"] for section, seen in looks.items() if seen["structure"]} == {}
    assert looks.keys() == set(SECTIONS)


def test_control_a_page_without_structure_is_found(chromium: Browser) -> None:
    page = chromium.new_page()
    page.set_content('<nav></nav><h1>a</h1><h3>b</h3><input name="c"><a href="/" tabindex="-1">d</a>')
    assert page.evaluate(STRUCTURE) == [
        "h3 after h1",
        "not one main",
        "<nav></nav> has no name",
        "c has no label",
        '<a href="/" tabindex="-1">d</a> is out of reach',
    ]
    page.close()


def test_the_keyboard_is_enough(chromium: Browser, shop: OpenShop) -> None:
    with opened(chromium, shop) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        visited = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            seen = page.evaluate(
                "[document.activeElement.innerText, getComputedStyle(document.activeElement).outlineStyle]"
            )
            visited.add(seen[0])
            assert seen[1] != "none", f"the focus on {seen[0]!r} cannot be seen"
            if seen[0] == "Dead letters":
                break
        assert {"Keys", "Dead letters"} <= visited
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Dead letters", level=1)).to_be_visible()


def test_without_javascript_everything_can_be_read_and_done(chromium: Browser, shop: OpenShop) -> None:
    with opened(chromium, shop, java_script_enabled=False) as page:
        for section in SECTIONS:
            answer = page.goto(shop.root + section)
            assert answer is not None
            assert answer.status == 200
        find_key(page, shop, "What happened to a key?")
        expect(page.get_by_text("A retry gets")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
