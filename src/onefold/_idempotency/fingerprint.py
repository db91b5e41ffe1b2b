"""The fingerprint: a hash of a request, to distinguish a retry from another request under the same key.

Invariant: equal fingerprints mean the same request as far as its strategy looks. Spelling (member order,
white space, `1.0` for `1`, a form's boundary) may be forgotten, a value never is; what has no exact canonical form is
compared byte for byte. Fingerprints are stored, so a form never depends on the interpreter or its limits; a changed
form needs a new `_VERSION`.

A fingerprint is 16 bytes of hash and the name of the form it was made from, so that a retry is compared the way the
first request was, whatever its route does by now. Its key is derived and stored nowhere: who reads the record cannot
try guesses. (Records of version 1 have neither: a bare hash under the digest. See `earlier_fingerprint`.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from json import JSONDecoder, JSONEncoder
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from onefold._idempotency.multipart import canonical_parts
from onefold.errors import ConfigurationError

FINGERPRINT_BYTES: Final = 16
NAME_BYTES_MAX: Final = 255
NESTING_MAX: Final = 100

#: Above either, JSON is compared by its bytes. 10,000 values take the parser up to a twelfth of a second, during which
#: an event loop does nothing else; a megabyte of `1e9,` would take it more than one.
VALUES_MAX: Final = 10_000
CANONICAL_BYTES_MAX: Final = 1 << 20


class RequestContent(NamedTuple):
    """What a fingerprint covers of a request. `media_type` is lower-case, without parameters, "" when there is none."""

    path: str
    query: bytes
    media_type: str
    body: bytes
    boundary: bytes = b""
    """What separates the parts of a `multipart/...` body."""
    parameters: tuple[str, ...] | None = None
    """The values in the path, in their order, where the route is known by its operation; None: the path counts."""
    media_parameters: bytes = b""
    """Of a `multipart/...` body with a `boundary`, the others."""


# What a route compares: turns a request into the bytes that stand for its body.
Strategy: TypeAlias = Callable[[RequestContent], bytes]

_VERSION: Final = b"onefold.asked.2"
_VERSION_1: Final = b"onefold.asked.1"
_KEY_BYTES_MIN: Final = 16
_KEY_BYTES_MAX: Final = 64

# Our forms differ in their first byte, so a raw body that looks like a canonical one is never taken for it. The same
# byte names the form in the fingerprint.
_JSON: Final = b"j"
_RAW: Final = b"r"
_FIELDS: Final = b"f"
_PARTS: Final = b"m"
_CUSTOM: Final = b"c"


def fingerprint(content: RequestContent, strategy: Strategy, *, key: bytes) -> bytes:
    """The hash that stands for the content, and the name of the form it was made from. `key` is stored nowhere."""
    _check_key(key)
    form = form_of(strategy, content)
    return hash_content(content, form, ours=is_ours(strategy), key=key) + form_name(strategy, form)


def earlier_fingerprint(content: RequestContent, strategy: Strategy, *, key: bytes) -> bytes:
    """As onefold 0.1 made it: JSON of any size by value, forms by their bytes, no name; `key` is the digest."""
    _check_key(key)
    return earlier_hash(content, _earlier_form(strategy, content), ours=is_ours(strategy), key=key)


def _check_key(key: bytes) -> None:
    if not _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
        raise ValueError(f"key has {len(key)} bytes, needs {_KEY_BYTES_MIN} to {_KEY_BYTES_MAX}")


def hash_content(content: RequestContent, form: bytes, *, ours: bool, key: bytes) -> bytes:
    """The hash of a request, 16 bytes, in this form and under this key."""
    return hash_form(frame_content(content, ours=ours), form, key)


def frame_content(content: RequestContent, *, ours: bool) -> bytes:
    """The frame of a request: what is hashed before its form."""
    values = content.parameters
    target = (
        content.path if values is None else "".join([f"{len(value)}:{value}" for value in values]) if values else ""
    )
    return _frame(target, content.query, ours)


def hash_form(frame: bytes, form: bytes, key: bytes, version: bytes = _VERSION) -> bytes:
    """The hash of a form in its frame, 16 bytes, under this key."""
    framed = b"%b%d:%b" % (frame, len(form), form)
    return blake2b(framed, digest_size=FINGERPRINT_BYTES, key=key, person=version).digest()


def earlier_hash(content: RequestContent, form: bytes, *, ours: bool, key: bytes) -> bytes:
    """The fingerprint as onefold 0.1 made it: by the path. Of a multipart form it compared the bytes."""
    compared = raw_bytes(content) if ours and form[:1] == _PARTS else form
    return hash_form(_frame(content.path, content.query, ours), compared, key, _VERSION_1)


def _frame(target: str, query: bytes, ours: bool) -> bytes:
    # A path may carry undecodable bytes as surrogates; they must neither raise nor be replaced.
    path = target.encode("utf-8", "surrogatepass")
    # Each part with its length, and so the form: no byte can move from one part to the next unnoticed.
    return (b"7:onefold%d:%b%d:%b" if ours else b"6:custom%d:%b%d:%b") % (len(path), path, len(query), query)


def form_of(strategy: Strategy, content: RequestContent) -> bytes:
    """The bytes a strategy compares."""
    form = strategy(content)
    if not isinstance(form, bytes):
        raise TypeError(f"fingerprint strategy {strategy!r} returned {type(form).__name__}, not bytes")
    return form


def form_name(strategy: Strategy, form: bytes) -> bytes:
    """What the record calls the form: enough to make it again, should the route's strategy change."""
    if not is_ours(strategy):
        return _CUSTOM + (strategy.name.encode() if isinstance(strategy, _NamedStrategy) else b"")
    if isinstance(strategy, _SelectedFields) and form[:1] == _FIELDS:
        return _FIELDS + strategy.written
    return form[:1]


def find_strategy(name: bytes, known: Iterable[Strategy]) -> Strategy | None:
    """What makes the form that a record names. `known` are a route's own strategies, today's and earlier ones."""
    match name[:1]:
        case b"j" | b"m":
            return canonical_json
        case b"r":
            return raw_bytes
        case b"f":
            return _SelectedFields(paths=tuple(name[1:].decode().split(",")))
        case _:
            return next((strategy for strategy in known if form_name(strategy, b"") == name), None)


def is_ours(strategy: Strategy) -> bool:
    return strategy is canonical_json or strategy is raw_bytes or isinstance(strategy, _SelectedFields)


def is_raw(form: bytes, *, ours: bool) -> bool:
    return ours and form[:1] == _RAW


def canonical_json(content: RequestContent) -> bytes:
    """The default: JSON by value, forms by their parts; anything else, JSON that parsers disagree on, and JSON of more
    than 10,000 values or 1 MiB, by its bytes."""
    try:
        return _JSON + _encode(_read(content))
    except _NOT_CANONICAL:
        return _parts_or_raw(content)


def raw_bytes(content: RequestContent) -> bytes:
    """The body as it came: for signed payloads, uploads, and formats that are not JSON."""
    return _RAW + content.body


def named_strategy(name: str, strategy: Strategy) -> Strategy:
    """A strategy of your own under a stable name, which is stored with each fingerprint it makes: a route that changes
    to another strategy goes on comparing old keys with this one, if it lists it in `fingerprint_before`."""
    if not 1 <= len(name.encode()) < NAME_BYTES_MAX or not name.isprintable():
        raise ConfigurationError(f"strategy name {name!r} must be 1 to {NAME_BYTES_MAX - 1} bytes of printable text")
    if is_ours(strategy):
        raise ConfigurationError(f"{strategy!r} is one of onefold's own strategies, and has its name already")
    return _NamedStrategy(name=name, strategy=strategy)


def selected_fields(*paths: str) -> Strategy:
    """Only these members of a JSON object count, by value, each named by a dotted path (`"customer.id"`).

    A missing member differs from null. A path leads through objects only: name an array as a whole. A body
    that is not a JSON object has no members to select and counts as a whole, as in `canonical_json`.
    """
    if not paths:
        raise ValueError("selected_fields() needs at least one path: without one, all bodies look the same")
    for path in paths:
        if not all(path.split(".")):
            raise ValueError(f"selected_fields() path {path!r} has an empty part, write 'customer.id'")
        if "," in path:
            raise ValueError(f"selected_fields() path {path!r} has a comma; name each path by itself")
    chosen = _SelectedFields(paths=tuple(sorted(set(paths))))
    if len(chosen.written) >= NAME_BYTES_MAX:
        raise ValueError(
            f"selected_fields() paths take {len(chosen.written)} bytes of each record, at most {NAME_BYTES_MAX - 1} "
            "are kept; name an object as a whole, or use named_strategy()"
        )
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedStrategy:
    name: str
    strategy: Strategy

    def __call__(self, content: RequestContent) -> bytes:
        return self.strategy(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SelectedFields:
    paths: tuple[str, ...]

    @property
    def written(self) -> bytes:
        return ",".join(self.paths).encode("utf-8", "surrogatepass")

    def __call__(self, content: RequestContent) -> bytes:
        try:
            return self.form(_read(content))
        except _NOT_CANONICAL:
            return _parts_or_raw(content)

    def form(self, body: Json) -> bytes:
        if _members(body) is None:
            return _JSON + _encode(body)
        return _FIELDS + _encode([[path, *_select(body, path)] for path in self.paths])


def _parts_or_raw(content: RequestContent) -> bytes:
    if content.boundary and content.media_type.startswith("multipart/"):
        try:
            return _PARTS + canonical_parts(content.boundary, content.body) + content.media_parameters
        except ValueError:
            pass
    return raw_bytes(content)


def _earlier_form(strategy: Strategy, content: RequestContent) -> bytes:
    """As onefold 0.1 made it: JSON of any size, forms by their bytes."""
    if strategy is not canonical_json and not isinstance(strategy, _SelectedFields):
        return form_of(strategy, content)
    try:
        body = _read(content, limited=False)
        return strategy.form(body) if isinstance(strategy, _SelectedFields) else _JSON + _encode(body)
    except _NOT_CANONICAL:
        return raw_bytes(content)


def is_large(body: bytes) -> bool:
    """Whether JSON of this size could keep its parser busy. Every value follows a bracket, a comma or nothing."""
    if len(body) <= VALUES_MAX:
        return False
    values = body.count(b",") + body.count(b"[") + body.count(b"{")
    return values >= VALUES_MAX or len(body) > CANONICAL_BYTES_MAX


# Canonical JSON: one pass of the C parser, one of the C writer; only numbers and objects come by here.
#
# An integer of up to _SHORT_DIGITS digits stays one. Any other number becomes {"#": "<digits>e<power of 10>"}
# without trailing zeros in its digits: a form each value has exactly once, made from the token's text in
# linear time, without a float and without a limit on its size. An object that really has a member "#" becomes
# {"#": {its members}}: a string below "#" is always a number, an object below it always the real one.

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | bool | None"

_MARK: Final = "#"
_SHORT_DIGITS: Final = 20  # 64-bit ids fit
_EXPONENT_DIGITS_MAX: Final = 600  # int() and str() take 640 under every setting of the interpreter's limit
_WHITE_SPACE: Final = " \t\n\r"
_NOT_CANONICAL: Final = (ValueError, RecursionError)


def _read(content: RequestContent, *, limited: bool = True) -> Json:
    """The body as data that `_encode` can write, or one of _NOT_CANONICAL."""
    body = content.body
    if content.media_type != "application/json" and not content.media_type.endswith("+json"):
        raise ValueError("not JSON")
    if limited and is_large(body):
        raise ValueError("too large")
    # Decoded here, strictly: json.loads would guess UTF-16 or UTF-32 and let broken surrogates pass.
    text = body.decode("utf-8").strip(_WHITE_SPACE)
    value: Json
    value, end = _DECODER.raw_decode(text)
    if end != len(text):
        raise ValueError("more than one JSON value")
    # The parser gives up where the stack ends, and a retry may come in on a deeper stack: so a fixed limit,
    # far below the stack's, decides. Every level opens a bracket: without many of them there is no depth.
    if body.count(b"[") + body.count(b"{") > NESTING_MAX and _is_nested_deeper(value, NESTING_MAX):
        raise ValueError("nested too deep")
    return value


def _encode(value: Json) -> bytes:
    return "".join(_write(value, 0)).encode("ascii")


def _object(pairs: list[tuple[str, Json]]) -> Json:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member name occurs twice: parsers differ on which one counts")
    return {_MARK: members} if _MARK in members else members


def _integer(token: str) -> Json:
    return int(token) if len(token) <= _SHORT_DIGITS else _number(token)


def _number(token: str) -> Json:
    """The one form of the value that a JSON number token spells."""
    mantissa, _, exponent = token.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("-0")
    significant = digits.rstrip("0")
    if not significant:
        return 0
    power = len(digits) - len(significant) - len(fraction)
    if exponent:
        power += _exponent(exponent)
    sign = "-" if token[0] == "-" else ""
    if 0 <= power <= _SHORT_DIGITS - len(significant):
        return int(f"{sign}{significant}{'0' * power}")
    return {_MARK: f"{sign}{significant}e{power}"}


def _exponent(token: str) -> int:
    size = token.lstrip("+-0") or "0"
    if len(size) > _EXPONENT_DIGITS_MAX:
        raise ValueError(f"an exponent of {len(size)} digits")
    return -int(size) if token[0] == "-" else int(size)


def _refuse_constant(token: str) -> NoReturn:
    raise ValueError(f"{token} is not JSON")


def _members(value: Json) -> dict[str, Json] | None:
    """The members of a real object; None for everything else, also for a number in its marked form."""
    inner = value.get(_MARK, value) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else None


def _select(body: Json, path: str) -> list[Json]:
    """The value at `path` in a list of its own, or an empty list: that is how missing differs from null."""
    value = body
    for name in path.split("."):
        members = _members(value)
        if members is None or name not in members:
            return []
        value = members[name]
    return [value]


def _is_nested_deeper(value: Json, levels_max: int) -> bool:
    level = [value]
    for _ in range(levels_max):
        level = [child for node in level for child in _children(node) if isinstance(child, (dict, list))]
    return any(isinstance(node, list) or _members(node) is not None for node in level)


def _children(node: Json) -> Iterable[Json]:
    return node if isinstance(node, list) else (_members(node) or {}).values()


_DECODER: Final = JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_refuse_constant
)
_ENCODER: Final = JSONEncoder(sort_keys=True, separators=(",", ":"), check_circular=False)


def _find_writer() -> Callable[[Json, int], Iterable[str]]:
    """What writes a value, in parts. `JSONEncoder.encode` makes its C writer anew for each value, which takes longer
    than to write most bodies. The name of that is not documented: where it is not as expected, `encode` it is."""
    try:
        make: Any = vars(json.encoder)["c_make_encoder"]
        write: Callable[[Json, int], Iterable[str]] = make(
            None, _ENCODER.default, encode_basestring_ascii, None, ":", ",", True, False, False
        )
        "".join(write({}, 0))
    except (KeyError, TypeError):
        return lambda value, _: _ENCODER.encode(value)
    return write


_write: Final = _find_writer()
