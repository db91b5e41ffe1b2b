"""Compares answers, and formats requests and answers for reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from onefold._verify.findings import Exchange
from onefold._verify.http_port import NoAnswer, ProbeAnswer, ProbeRequest, Reply

MARK: Final = "idempotent-replayed"
_SHOWN_MAX: Final = 300
_HEADERS_SHOWN: Final = ("content-type", "location", "etag", "retry-after", MARK)


def same_answer(first: ProbeAnswer, second: ProbeAnswer) -> bool:
    """Whether status and content are the same. The bytes may differ: see the check `byte-identity`."""
    if first.status != second.status:
        return False
    return first.body == second.body or _content(first) == _content(second)


def _content(answer: ProbeAnswer) -> object:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        return answer.body


def is_marked(answer: ProbeAnswer) -> bool:
    """Whether the API marks the answer as a replay."""
    return (answer.header(MARK) or "").strip().lower() in ("true", "?1")


def exchange(
    request: ProbeRequest, reply: Reply, key_header: str, note: str, hide: Callable[[str], str] = str
) -> Exchange:
    """A request and its reply, formatted for a report. Credentials are hidden before the text is cut: half of one could
    stay."""
    keys = " ".join(
        f"{key_header}: {cut(hide(value.decode('latin-1')))}" for name, value in request.headers if name == key_header
    )
    body = cut(hide(request.body.decode("utf-8", "replace")))
    lines = [f"{request.method} ({note})", keys or f"no {key_header}", body]
    return Exchange(sent="  ".join(filter(None, lines)), came=_format_reply(reply, hide))


def _format_reply(reply: Reply, hide: Callable[[str], str]) -> str:
    match reply:
        case NoAnswer():
            return f"no answer: {reply.reason}"
        case ProbeAnswer():
            headers = [f"{name}: {value}" for name in _HEADERS_SHOWN if (value := reply.header(name)) is not None]
            headers += [f"set-cookie: {line.partition('=')[0]}=..." for line in reply.header_lines("set-cookie")]
            return "  ".join(
                filter(None, [str(reply.status), *headers, cut(hide(reply.body.decode("utf-8", "replace")))])
            )


def cut(text: str) -> str:
    """The text, cut to the length that a report shows, and without control characters."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return plain if len(plain) <= _SHOWN_MAX else f"{plain[:_SHOWN_MAX]}... ({len(plain)} characters)"
