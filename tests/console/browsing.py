"""A browser without a screen, for tests of the console: it keeps cookies, and sends forms as a page has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape, unescape
from typing import Any
from urllib.parse import quote

import httpx

VIEW = "view-token-of-the-tests"
ACT = "act-token-of-the-tests!"

ORIGIN = "http://console.test"

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Visitor:
    """One browser at one console, mounted at `root` below its application."""

    def __init__(self, app: Any, *, root: str = "", origin: str = ORIGIN) -> None:
        self.root = root
        self.origin = origin
        # An error of the application is an answer, as behind a server.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url=origin)

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """A page; redirects are not followed."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.get(self.root + path, headers=given)

    async def post(
        self, path: str, fields: Mapping[str, str], *, csrf: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """A form, with the token that was given, sent by a page of this origin unless `headers` say another thing."""
        given = {"Origin": self.origin} if headers is None else dict(headers)
        data = dict(fields) if csrf is None else {"csrf": csrf, **fields}
        return await self.client.post(self.root + path, data=data, headers=given)

    async def csrf_on(self, path: str) -> str:
        """The token in the forms of a page."""
        return csrf_in(await self.get(path))

    async def submit(self, page: str, action: str, **fields: str) -> httpx.Response:
        """A form of a page, sent as a browser does."""
        shown = await self.get(page)
        return await self.post(action, {**hidden_in(shown, self.root + action), **fields}, csrf=csrf_in(shown))

    async def sign_in(self, token: str, *, name: str = "", then: str = "") -> httpx.Response:
        at = f"/login?next={quote(then, safe='')}" if then else "/login"
        return await self.submit(at, at, token=token, name=name)


def hidden_in(page: httpx.Response, action: str) -> dict[str, str]:
    """What a form of a page sends along with what is typed."""
    form = re.search(rf'action="{re.escape(escape(action))}">(.*?)</form>', page.text, re.DOTALL)
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[1]) if form else []
    return {name: unescape(value) for name, value in found}


def csrf_in(page: httpx.Response) -> str:
    found = _CSRF.search(page.text)
    assert found is not None, f"no form in {page.status_code} {page.text}"
    return found[1]


def text_of(page: httpx.Response) -> str:
    """What a reader sees, roughly: without tags, blanks joined."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page.text)).split())
