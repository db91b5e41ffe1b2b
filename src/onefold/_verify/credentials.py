"""Removes credentials from reports: the values of headers of the command line, and passwords in commands.

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
#: Shorter values are no secrets, and are parts of words: removing them would make texts unreadable.
_LENGTH_MIN: Final = 4
_HARMLESS: Final = re.compile(r"(?i)accept(-\w+)?|content-type|user-agent")
_SCHEMES: Final = frozenset({"bearer", "basic", "digest", "token", "apikey", "negotiate"})
_IN_COMMANDS: Final = re.compile(
    r"://[^/\s:@]*:([^@\s]+)@|(?i:passw(?:or)?d|token|secret|key)[=:]\s*['\"]?([^\s'\"&]+)"
)


class Secrets:
    """The texts that no report may show."""

    def __init__(
        self, headers: Iterable[HeaderLines], *, urls: Iterable[str] = (), commands: Iterable[str] = ()
    ) -> None:
        texts: set[str] = set()
        for lines in headers:
            for name, value in lines:
                if not _HARMLESS.fullmatch(name):
                    texts |= _parts(value.decode("latin-1"))
        for url in urls:
            values = {pair.partition("=")[2] for pair in urlsplit(url).query.split("&")}
            texts |= values | {unquote(value) for value in values}
        for command in commands:
            texts |= {group for groups in _IN_COMMANDS.findall(command) for group in groups}
        spelled = {spelling for text in texts for spelling in (text, json.dumps(text)[1:-1], quote(text, safe=""))}
        # The longest first: a part of it must not be replaced before.
        self._texts = sorted((text for text in spelled if len(text) >= _LENGTH_MIN), key=len, reverse=True)

    def hide_in(self, text: str) -> str:
        """The text without secrets."""
        for secret in self._texts:
            text = text.replace(secret, _HIDDEN)
        return text

    def hide(self, report: ProbeReport) -> ProbeReport:
        """The report without secrets."""
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
    parts = {value, *words, *(word.partition("=")[2].strip('"') for word in words)}
    for word in words:
        try:
            decoded = b64decode(word, validate=True).decode()
        except ValueError:
            continue
        parts |= {decoded, decoded.partition(":")[2]}
    return parts
