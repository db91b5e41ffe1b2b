"""Refuses forms of other sites: a POST comes from a page of this console, shown to the same operator.

Two locks, of which either is enough against a browser that is whole. The browser says where a request comes from
(`Sec-Fetch-Site`, or `Origin` where that is missing; a request with neither is refused). And the form has a token that
only a page of ours has: made from a random cookie of this browser and from the session, so that it is of no use in
another browser, nor after another sign-in.
"""

from __future__ import annotations

import hmac
import re
import secrets
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

FIELD: Final = "csrf"
COOKIE: Final = "onefold_console_browser"

_BROWSER: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def browser_of(request: Request) -> str | None:
    """The random id that this browser has in its cookie; None if it has none, or an invalid one."""
    cookie = request.cookies.get(COOKIE, "")
    return cookie if _BROWSER.fullmatch(cookie) else None


def new_browser() -> str:
    return secrets.token_urlsafe(32)


def token_of(browser: str, session: str) -> str:
    """The value of a form's hidden field."""
    return hmac.new(browser.encode(), f"onefold console form\0{session}".encode(), sha256).hexdigest()


def is_genuine(token: str, browser: str | None, session: str) -> bool:
    """Whether a form was made for this browser and this session."""
    if browser is None:
        return False
    return hmac.compare_digest(token.encode("utf-8", "replace"), token_of(browser, session).encode())


def is_from_here(request: Request) -> bool:
    """Whether the browser says that a page of this very origin sent this. `Sec-Fetch-Site` holds behind a proxy that
    changes the host, too; browsers leave it out over plain HTTP, and then the origin must be the host asked."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
    try:
        return bool(host) and urlsplit(origin).netloc.lower() == host.lower()
    except ValueError:
        return False
