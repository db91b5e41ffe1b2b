"""Stored answers for people: headers and body, as far as they are text and can be decrypted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from onefold._http.stored_response import Reading
from onefold._idempotency.encryption import UnreadableAnswer
from onefold._idempotency.model import Record

BODY_CHARS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAnswer:
    """An answer on a page."""

    headers: tuple[tuple[str, str], ...] = ()
    body: str | None = None
    """None: it is not shown, and `note` says why."""
    note: str = ""


def read_answer(record: Record, reading: Reading) -> ShownAnswer:
    """The stored headers and body."""
    try:
        head = reading.head(record)
        body = None if record.body is None else reading.body(record, record.body)
    except UnreadableAnswer as error:
        return ShownAnswer(
            note=f"It cannot be opened here: {error}. A console that is mounted into the application, or runs with "
            "--app, has the application's keys."
        )
    lines = [line.decode("latin-1").partition(":") for line in head.split(b"\r\n")]
    headers = tuple((name, value.strip()) for name, _, value in lines if name)  # the id of the run has no name
    if body is None:
        return ShownAnswer(headers=headers, note="The body was too large to be kept.")
    by_name = dict(headers)
    if coding := by_name.get("content-encoding"):
        return ShownAnswer(headers=headers, note=f"The body ({len(body)} bytes) is encoded: {coding}.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return ShownAnswer(headers=headers, note=f"The body ({len(body)} bytes) is not text.")
    if len(text) > BODY_CHARS_MAX:
        return ShownAnswer(
            headers=headers,
            body=text[:BODY_CHARS_MAX],
            note=f"The first {BODY_CHARS_MAX:,} of {len(text):,} characters.",
        )
    return ShownAnswer(headers=headers, body=text, note="" if text else "The body is empty.")
