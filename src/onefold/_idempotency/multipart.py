"""Forms (`multipart/*`) by their parts: a client that sends a form again draws another boundary.

Invariant: equal forms have the same parts, in the same order, for every parser, lenient ones too. What parsers could
read in two ways (a preamble, folded headers, the boundary inside a part) is not a form here, and is compared by its
bytes.
"""

from __future__ import annotations

from typing import Final

PARTS_MAX: Final = 1_000
HEAD_BYTES_MAX: Final = 8 * 1024

_LINE: Final = b"\r\n"


def canonical_parts(boundary: bytes, body: bytes) -> bytes:
    """The parts without their boundary, each piece with its length; ValueError where there is a doubt."""
    if not boundary:
        raise ValueError("no boundary")
    delimiter = b"--" + boundary
    first, *parts = (_LINE + body).split(_LINE + delimiter, PARTS_MAX + 1)
    # Some clients begin with a line break: a preamble without anything in it, which every parser passes over.
    if first not in (b"", _LINE) or not parts or parts.pop() not in (b"--", b"--" + _LINE):
        raise ValueError("something before the first part or after the last, or too many parts")
    if body.count(delimiter) != len(parts) + 1:
        raise ValueError("the boundary occurs inside a part: some parsers end it there")
    return b"%d;" % len(parts) + b"".join(map(_frame, parts))


def _frame(part: bytes) -> bytes:
    head, end, content = part.removeprefix(_LINE).partition(_LINE * 2)
    if not part.startswith(_LINE) or not end or len(head) > HEAD_BYTES_MAX:
        raise ValueError("a part without headers, or with more than are read")
    headers = sorted(map(_header, head.split(_LINE)))
    if len({name for name, _ in headers}) != len(headers):
        raise ValueError("a header of a part occurs twice: parsers differ on which one counts")
    pieces = [piece for header in headers for piece in header]
    return b"%d;" % len(headers) + b"".join(b"%d:%b" % (len(piece), piece) for piece in (*pieces, content))


def _header(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not name or name != name.strip() or b"\r" in line or b"\n" in line:
        raise ValueError("a line that is not a header: folded, broken or without a colon")
    return name.lower(), value.strip(b" \t")
