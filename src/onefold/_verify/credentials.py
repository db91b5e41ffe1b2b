"""Takes credentials out of what is shown: the values of headers that were given, and passwords in commands.

Invariant: every report is made of a `ProbeReport` that went through `Secrets.hide`; catalogue texts have none.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterable
from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from onefold._verify.findings import ProbeReport
from onefold._verify.http_port import HeaderLines

_HIDDEN: Final = "..."
#: What is shorter is part of words: taking it out would make texts unreadable, and it is not a secret.
_LENGTH_MIN: Final = 4
_HARMLESS: Final = re.compile(r"(?i)accept(-\w+)?|content-type|user-agent")
_SCHEMES: Final = frozenset({"bearer", "basic", "digest", "token", "apikey", "negotiate"})
_IN_COMMANDS: Final = re.compile(
    r"://[^/\s:@]*:([^@\s]+)@|(?i:passw(?:or)?d|token|secret|key)[=:]\s*['\"]?([^\s'\"&]+)"
)


class Secrets:
    """What must not be shown."""

    def __init__(
        self, headers: Iterable[HeaderLines], *, urls: Iterable[str] = (), commands: Iterable[str] = ()
    ) -> None:
        found: set[str] = set()
        for lines in headers:
            for name, value in lines:
                if not _HARMLESS.fullmatch(name):
                    found |= _parts(value.decode("latin-1"))
        for url in urls:
            values = {pair.partition("=")[2] for pair in urlsplit(url).query.split("&")}
            found |= values | {unquote(value) for value in values}
        for command in commands:
            found |= {group for groups in _IN_COMMANDS.findall(command) for group in groups}
        spelled = {spelling for text in found for spelling in (text, json.dumps(text)[1:-1], quote(text, safe=""))}
        # The longest first: a part of it must not be replaced before.
        self._texts = sorted((text for text in spelled if len(text) >= _LENGTH_MIN), key=len, reverse=True)

    def hide_in(self, text: str) -> str:
        """The text without them."""
        for secret in self._texts:
            text = text.replace(secret, _HIDDEN)
        return text

    def hide(self, report: ProbeReport) -> ProbeReport:
        """The report without them."""
        findings = tuple(
            replace(
                finding,
                seen=self.hide_in(finding.seen),
                exchanges=tuple(
                    replace(one, sent=self.hide_in(one.sent), came=self.hide_in(one.came)) for one in finding.exchanges
                ),
            )
            for finding in report.findings
        )
        unusable = None if report.unusable is None else self.hide_in(report.unusable)
        return replace(report, findings=findings, unusable=unusable)


def _parts(value: str) -> set[str]:
    """A header's value, the words in it that are no scheme, the values of its pairs, and what Basic encodes."""
    words = {word for word in re.split(r"[\s,;]+", value) if word.lower() not in _SCHEMES}
    found = {value, *words, *(word.partition("=")[2].strip('"') for word in words)}
    for word in words:
        try:
            decoded = b64decode(word, validate=True).decode()
        except ValueError:
            continue
        found |= {decoded, decoded.partition(":")[2]}
    return found
