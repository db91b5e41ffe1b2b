"""Whether two answers are the same, and how requests and answers are shown."""

from __future__ import annotations

import json
from typing import Final

from onefold._verify.findings import Exchange
from onefold._verify.http_port import NoAnswer, ProbeAnswer, ProbeRequest, Reply

MARK: Final = "idempotent-replayed"
_SHOWN_MAX: Final = 300
_HEADERS_SHOWN: Final = ("content-type", "location", "etag", "retry-after", MARK)


def same_answer(first: ProbeAnswer, second: ProbeAnswer) -> bool:
    """Status and content are the same. How the content is spelled is another question (`byte-identity`)."""
    return first.status == second.status and _content(first) == _content(second)


def _content(answer: ProbeAnswer) -> object:
    try:
        return json.loads(answer.body)
    except ValueError:
        return answer.body


def is_marked(answer: ProbeAnswer) -> bool:
    """Whether the API says that it is a replay."""
    return (answer.header(MARK) or "").strip().lower() in ("true", "?1")


def exchange(request: ProbeRequest, reply: Reply, key_header: str, note: str) -> Exchange:
    """The two as a report shows them: without the credentials, and cut."""
    keys = " ".join(
        f"{key_header}: {_cut(value.decode('latin-1'))}" for name, value in request.headers if name == key_header
    )
    sent = [f"{request.method} ({note})", keys or f"no {key_header}", _cut(request.body.decode("utf-8", "replace"))]
    return Exchange(sent="  ".join(filter(None, sent)), came=_shown(reply))


def _shown(reply: Reply) -> str:
    match reply:
        case NoAnswer():
            return f"no answer: {reply.reason}"
        case ProbeAnswer():
            headers = [f"{name}: {value}" for name in _HEADERS_SHOWN if (value := reply.header(name)) is not None]
            headers += [f"set-cookie: {line.partition('=')[0]}=..." for line in reply.header_lines("set-cookie")]
            return "  ".join(filter(None, [str(reply.status), *headers, _cut(reply.body.decode("utf-8", "replace"))]))


def _cut(text: str) -> str:
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return plain if len(plain) <= _SHOWN_MAX else f"{plain[:_SHOWN_MAX]}... ({len(plain)} characters)"
