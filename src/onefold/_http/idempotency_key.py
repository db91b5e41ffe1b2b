"""Reads the `Idempotency-Key` header (draft -07: an RFC 9651 Structured Field String).

Invariant: one intent has one key. What could be read as two keys, or by two readers as two different ones, is
refused here, before any store is touched; nothing is repaired, truncated or picked from several.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote_to_bytes

from onefold._kernel.ids import uuid7_ms
from onefold.errors import KeyMalformed

LENGTH_MAX: Final = 255

#: How far ahead of our clock a key may be dated before it is not believed.
_SKEW_MS: Final = 24 * 3600 * 1000


class KeyFault(ValueError):
    """Why a header is not one usable key: `reason` says what is wrong and where, and quotes nothing of the key."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# A bare key may have every visible ASCII character, except those where its quoted spelling could part ways:
#   "   opens a string: what starts with it must parse as one, and inside it betrays broken quoting
#   ,   is how an HTTP library joins two header lines: it would hide a second key
#   ;   begins parameters, which are ignored after "k": `k;x=1` would be another key than `"k";x=1`
#   \   is an escape inside quotes: `a\b` in quotes is not a string, `a\\b` in quotes is shorter than it looks
# Space and control characters are out: intermediaries trim and fold them. `=` stays: base64 ends with it.
_BARE_CHARACTERS: Final = bytes(set(range(0x21, 0x7F)) - set(b'",;\\'))
_BARE: Final = rb"[%b]" % re.escape(_BARE_CHARACTERS)
_PLAIN: Final = rb"[ !#-\[\]-~]"

# First characters that announce another Structured Field type. Such a value has several spellings (`:YQ:` is
# `:YQ==:`), so a gateway may rewrite it between attempts: as a bare key, that retry would be a new intent.
_ANNOUNCED: Final = {
    ord("("): "an inner list",
    ord(":"): "a byte sequence",
    ord("?"): "a boolean",
    ord("@"): "a date",
    ord("%"): "a display string",
}
_NUMBER_START: Final = b"-0123456789"

# The common case in one match: a quoted string without escapes or parameters, or (lenient) a bare key.
_FAST_STRICT: Final = re.compile(rb'[ \t]*+"(%b++)"[ \t]*+' % _PLAIN)
_FAST_LENIENT: Final = re.compile(rb'[ \t]*+(?:"(%b++)"|((?![(:?@%%])%b++))[ \t]*+' % (_PLAIN, _BARE))

# Possessive quantifiers throughout: a hostile value costs one pass, never a search.
_STRING_OPEN: Final = re.compile(rb'"((?:%b|\\["\\])*+)' % _PLAIN)
_ESCAPE: Final = re.compile(rb'\\(["\\])')
_PARAMETER: Final = re.compile(
    rb"""
    ;\ *+ [a-z*][a-z0-9_.*-]*+
    (?: =
      (?: -?[0-9]{1,12}\.[0-9]{1,3}                                                     # decimal
        | @?-?[0-9]{1,15}                                                               # integer, date
        | "(?:[\x20!\x23-\[\]-~]|\\["\\])*+"                                            # string
        | [A-Za-z*][A-Za-z0-9!\x23$%&'*+.^_`|~:/-]*+                                    # token
        | :(?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}={0,2}|[A-Za-z0-9+/]{3}=?)?+:       # byte sequence
        | \?[01]                                                                        # boolean
        | %"(?P<display>(?:[\x20!\x23\x24&-~]|%[0-9a-f]{2})*+)"                         # display string
      )
    )?+
    """,
    re.VERBOSE,
)


# The same for people and machines that read a schema, in the regular expressions of ECMA 262: what matches is read as a
# key. Parameters and white space around it, which are read as well and mean nothing, are left out.
_QUOTED_SHOWN: Final = r'"(?:[ !#-\[\]-~]|\\["\\]){1,%d}"'
_BARE_SHOWN: Final = r"[!#$&')*+\--9<->A-\[\]-~][!#-+\--:<-\[\]-~]{0,%d}"
_UUID7_SHOWN: Final = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-7[0-9A-Fa-f]{3}-[89ABab][0-9A-Fa-f]{3}-[0-9A-Fa-f]{12}"


def key_schema(*, strict: bool, dated: bool) -> dict[str, str | int]:
    """The JSON Schema of the header's value. `dated`: keys must be UUIDv7."""
    if dated:
        quoted, bare = f'"{_UUID7_SHOWN}"', _UUID7_SHOWN
        least, most = (38, 38) if strict else (36, 38)
    else:
        quoted, bare = _QUOTED_SHOWN % LENGTH_MAX, _BARE_SHOWN % (LENGTH_MAX - 1)
        least, most = (3 if strict else 1), 2 + 2 * LENGTH_MAX  # each character may be an escape, which has two
    pattern = f"^{quoted}$" if strict else f"^(?:{quoted}|{bare})$"
    return {"type": "string", "minLength": least, "maxLength": most, "pattern": pattern}


def parse_key(values: Sequence[bytes], *, strict: bool, length_max: int = LENGTH_MAX) -> str:
    """The key in the raw values of every `Idempotency-Key` line of one request, or KeyFault.

    Strict accepts only a Structured Field String. Lenient also accepts a bare key: the same key as in quotes.
    """
    if len(values) != 1:
        raise KeyFault(f"expected one Idempotency-Key line, got {len(values)}")
    value = values[0]
    if found := (_FAST_STRICT if strict else _FAST_LENIENT).fullmatch(value):
        key = found[found.lastindex or 0].decode("ascii")
    else:
        # HTTP trims tabs too, a Structured Field knows only spaces; some servers leave the trimming to us.
        key = _parse_string(value.strip(b" \t"), strict=strict)
    if len(key) > length_max:
        raise KeyFault(f"the key has {len(key)} characters, at most {length_max} are accepted")
    return key


def _parse_string(value: bytes, *, strict: bool) -> str:
    """What the fast match left over: escapes, parameters, and everything that is wrong."""
    if not value:
        raise KeyFault("the header is empty")
    opened = _STRING_OPEN.match(value)
    if opened is None:
        raise _unquoted_fault(value, strict=strict)
    end = opened.end()
    if value[end : end + 1] != b'"':
        raise _string_fault(value, end)
    _skip_parameters(value, end + 1)
    if not opened[1]:
        raise KeyFault("the key between the quotes is empty")
    return _ESCAPE.sub(rb"\1", opened[1]).decode("ascii")


def _skip_parameters(value: bytes, position: int) -> None:
    """Parameters carry no meaning for a key, but a header with broken ones is not a Structured Field."""
    while value[position : position + 1] == b";":
        parameter = _PARAMETER.match(value, position)
        if parameter is None or not _is_utf8(parameter["display"]):
            raise KeyFault(f"the parameter at character {position + 1} is not valid")
        position = parameter.end()
    rest = value[position:].lstrip(b" \t")
    if rest.startswith(b","):
        raise KeyFault(f"a list of keys: comma at character {len(value) - len(rest) + 1}")
    if rest:
        raise KeyFault(f"unexpected {_show_byte(value[position])} at character {position + 1}")


def _is_utf8(percent_encoded: bytes | None) -> bool:
    try:
        unquote_to_bytes(percent_encoded or b"").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _string_fault(value: bytes, position: int) -> KeyFault:
    """Why the string that opens `value` stops at `position` without its closing quote."""
    if position == len(value):
        return KeyFault(f"the closing quote is missing after character {position}")
    if value[position : position + 1] == b"\\":
        return KeyFault(f'bad escape at character {position + 1}: only \\" and \\\\ are known')
    return KeyFault(f"{_show_byte(value[position])} at character {position + 1} is not printable ASCII")


def _unquoted_fault(value: bytes, *, strict: bool) -> KeyFault:
    if announced := _ANNOUNCED.get(value[0]):
        return KeyFault(f"{announced} at character 1, expected a string in double quotes")
    if strict:
        kind = "a number" if value[0] in _NUMBER_START else "an unquoted value"
        return KeyFault(f"{kind} at character 1, expected a string in double quotes")
    position = len(value) - len(value.lstrip(_BARE_CHARACTERS))
    if value[position : position + 1] == b",":
        return KeyFault(f"a list of keys: comma at character {position + 1}")
    return KeyFault(
        f"{_show_byte(value[position])} at character {position + 1} is not allowed in a key without double quotes"
    )


def _show_byte(byte: int) -> str:
    return f"'{chr(byte)}'" if 0x21 <= byte <= 0x7E else f"byte 0x{byte:02x}"


def read_key(lines: Sequence[bytes], *, strict: bool) -> str:
    """`parse_key` for a request: what cannot be read is the caller's error. Raises KeyMalformed."""
    try:
        return parse_key(lines, strict=strict)
    except KeyFault as error:
        raise KeyMalformed(f"The Idempotency-Key header cannot be used: {error.reason}") from error


def generated_ms(key: str, now_ms: int) -> int:
    """When a key was generated, on a route that refuses late retries. Raises KeyMalformed."""
    key_ms = uuid7_ms(key)
    if key_ms is None:
        raise KeyMalformed("This route refuses late retries, so its keys must be UUIDv7 (they carry their time).")
    if key_ms > now_ms + _SKEW_MS:
        raise KeyMalformed("The Idempotency-Key is a UUIDv7 dated more than a day ahead; check the client's clock.")
    return key_ms
