"""The fingerprint: spelling is forgotten, values never are (rows C07, C11, C12 of the HTTP contract)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from hashlib import blake2b

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold._idempotency.fingerprint import (
    NESTING_MAX,
    RequestContent,
    Strategy,
    canonical_json,
    earlier_fingerprint,
    fingerprint,
    raw_bytes,
    selected_fields,
)

KEY = bytes(range(16))
JSON_TYPE = "application/json"

properties = settings(max_examples=300, deadline=None)


def content(
    body: bytes | str = b"", media_type: str = JSON_TYPE, path: str = "/orders", query: bytes = b""
) -> RequestContent:
    return RequestContent(
        path=path,
        query=query,
        media_type=media_type,
        body=body.encode("utf-8") if isinstance(body, str) else body,
    )


def canonical(body: bytes | str) -> bytes:
    """The canonical form, which has to be one: a raw fallback would make any two bodies differ."""
    form = canonical_json(content(body))
    assert form != raw_bytes(content(body)), "fell back to raw"
    return form


def same(one: bytes | str, other: bytes | str, strategy: Strategy = canonical_json) -> bool:
    prints = [fingerprint(content(body), strategy, key=KEY) for body in (one, other)]
    assert (prints[0] == prints[1]) == (strategy(content(one)) == strategy(content(other)))
    return prints[0] == prints[1]


# --- an independent oracle: JSON read into values that compare exactly, without the module's tricks ---------


def reference(text: str) -> Hashable:
    def typed(value: object) -> Hashable:
        match value:
            case None | bool():
                return "literal", str(value)
            case Fraction():
                return "number", value
            case str():
                return "string", value
            case list():
                return "array", tuple(map(typed, value))
            case dict():
                return "object", frozenset((name, typed(member)) for name, member in value.items())
            case _:
                raise AssertionError(value)

    return typed(json.loads(text, parse_int=Fraction, parse_float=Fraction))


def disagreements(canonicaliser: Callable[[str], bytes], pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs on which a canonicaliser raises, or is of another opinion than exact values."""
    wrong = []
    for one, other in pairs:
        try:
            agrees = (canonicaliser(one) == canonicaliser(other)) == (Decimal(one) == Decimal(other))
        except ValueError:
            agrees = False
        if not agrees:
            wrong.append((one, other))
    return wrong


HARD_NUMBERS = [
    ("9007199254740993", "9007199254740992"),
    ("18446744073709551615", "18446744073709551616"),
    ("9007199254740993.0", "9007199254740993"),
    ("0.1", "0.1000000000000000055511151231257827021181583404541015625"),
    ("1234567890123456789012345678901234567890", "1234567890123456789012345678901234567891"),
    ("0." + "3" * 40, "0." + "3" * 41),
    ("1e400", "1e401"),
    ("1e400", "10e399"),
    ("1e-400", "0"),
    ("9" * 5000, "9" * 4999 + "8"),
    ("9" * 5000, "9" * 4999 + "90e-1"),
    ("-" + "9" * 5000, "9" * 5000),
]


def test_c12_hard_numbers_neither_raise_nor_collapse() -> None:
    assert disagreements(canonical, HARD_NUMBERS) == []


def test_the_oracle_finds_a_canonicaliser_that_goes_through_floats() -> None:
    """A control: the obvious way to write it collapses ids and decimals, and the oracle has to notice."""

    def naive(text: str) -> bytes:
        return json.dumps(json.loads(text, parse_int=float), sort_keys=True).encode()

    found = disagreements(naive, HARD_NUMBERS)
    assert ("9007199254740993", "9007199254740992") in found
    assert ("0.1", "0.1000000000000000055511151231257827021181583404541015625") in found
    assert ("1e400", "1e401") in found
    assert ("9" * 5000, "9" * 4999 + "8") in found


def test_the_oracle_finds_a_canonicaliser_with_the_integers_of_the_interpreter() -> None:
    """A control: json.loads and json.dumps as they come refuse 5000 digits and tell 1.0 from 1."""

    def plain(text: str) -> bytes:
        return json.dumps(json.loads(text), sort_keys=True).encode()

    found = disagreements(plain, [*HARD_NUMBERS, ("1.0", "1")])
    assert {("9" * 5000, "9" * 4999 + "8"), ("1.0", "1"), ("1e400", "1e401")} <= set(found)


# --- numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spellings",
    [
        ["1", "1.0", "1e0", "10e-1", "1E0", "1e+0", "0.1e1", "0.00100e3", "1.000", "100e-2", "1e-0"],
        ["0", "-0", "0.0", "-0.0", "0e9", "-0e-9", "0.000E+99", "0e" + "9" * 5000],
        ["-1", "-1.0", "-10e-1"],
        ["100", "1e2", "1E+02", "100.00", "1e" + "0" * 5000 + "2"],
        ["12345678901234567890", "1234567890123456789e1", "12345678901234567890.0"],
        ["-12345678901234567890", "-1234567890123456789e1"],
        ["100000000000000000000", "1e20", "1000000000000000000.00e2"],
        ["-10000000000000000000", "-1e19"],
        ["9.99", "999e-2", "0.999e1", "9.990"],
        ["1e400", "10e399", "0.1e401", "1" + "0" * 400],
        ["7" + "0" * 5000, "7e5000", "0.7e5001"],
        ["1e" + "9" * 600, "10e" + "9" * 599 + "8"],
    ],
    ids=lambda spellings: spellings[0][:12],
)
def test_c12_spellings_of_one_number_are_the_same(spellings: list[str]) -> None:
    assert {canonical(f"[{spelling}]") for spelling in spellings} == {canonical(f"[{spellings[0]}]")}


WHOLE = st.one_of(
    st.sampled_from(["0", "1", "10", "100", "12", "123456789012345678901", "9007199254740993"]),
    st.from_regex(r"(0|[1-9][0-9]{0,24})", fullmatch=True),
)
FRACTION = st.sampled_from(["", ".0", ".1", ".10", ".00", ".01", ".12", ".000000000000000000001"])
EXPONENT = st.sampled_from(["", "e0", "e1", "E+1", "e-1", "e2", "e-2", "e20", "e-21", "e+0021", "e400"])
NUMBER = st.builds("{}{}{}{}".format, st.sampled_from(["", "-"]), WHOLE, FRACTION, EXPONENT)


@properties
@given(NUMBER, NUMBER)
@example("0", "-0.0e5")
@example("12e-1", "1.2")
def test_two_numbers_are_the_same_exactly_if_decimal_says_so(one: str, other: str) -> None:
    assert (canonical(one) == canonical(other)) == (Decimal(one) == Decimal(other))


@st.composite
def spellings(draw: st.DrawFn, digits: str, power: int) -> str:
    """A spelling of digits * 10**power: zeros appended, the point moved, the exponent decorated."""
    padded = digits + "0" * draw(st.integers(0, 3))
    power -= len(padded) - len(digits)
    decimals = draw(st.integers(0, len(padded) + 2))
    padded = padded.rjust(decimals + 1, "0")
    cut = len(padded) - decimals
    whole, fraction = padded[:cut].lstrip("0") or "0", padded[cut:]
    power += decimals
    sign = draw(st.sampled_from(["", "+"])) if power >= 0 else "-"
    exponent = draw(st.sampled_from("eE")) + sign + "0" * draw(st.integers(0, 2)) + str(abs(power))
    if power == 0 and draw(st.booleans()):
        exponent = ""
    return whole + (f".{fraction}" if fraction else "") + exponent


@properties
@given(st.data(), st.integers(0, 10**45), st.integers(-450, 450))
def test_every_spelling_of_a_value_is_the_same_and_its_neighbour_is_not(
    data: st.DataObject, digits: int, power: int
) -> None:
    one = data.draw(spellings(str(digits), power))
    other = data.draw(spellings(str(digits), power))
    neighbour = data.draw(spellings(str(digits + 1), power))
    assert Decimal(one) == Decimal(other) != Decimal(neighbour)  # the generator spells what it says
    assert canonical(one) == canonical(other) != canonical(neighbour)


def test_an_exponent_beyond_all_limits_is_compared_by_its_bytes() -> None:
    huge = "1e" + "9" * 5000
    assert canonical_json(content(huge)) == raw_bytes(content(huge))
    assert same(huge, huge)
    assert not same(huge, "1e" + "9" * 4999 + "8")


def test_the_form_does_not_depend_on_the_digit_limit_of_the_interpreter() -> None:
    long = ["9" * 5000, "9" * 700, "-" + "9" * 640 + ".5e-" + "9" * 600]
    bodies = [*long, "1e" + "9" * 600, "1e" + "9" * 700, "1" * 20]
    expected = [canonical_json(content(body)) for body in bodies]
    before = sys.get_int_max_str_digits()
    try:
        for limit in (640, 0):
            sys.set_int_max_str_digits(limit)
            assert [canonical_json(content(body)) for body in bodies] == expected
    finally:
        sys.set_int_max_str_digits(before)


# --- structure ---------------------------------------------------------------------------------------------

NAME = st.sampled_from(["a", "b", "#", "##", "", "1", "\u00e9", "\ud800"])
LITERAL = st.sampled_from(["null", "true", "false"])
SPELLED = st.sampled_from(["0", "-0", "1", "1.0", "0.5", "5e-1", "1e30", "10e29", "9007199254740993"])
TEXT = st.sampled_from(["", "1", "#", "5e-1", "1e30", "null", "a", "\u00e9", "\U0001f600", "\ud83d"])


def spelled_text(text: str, *, escaped: bool) -> str:
    """A JSON string, with every character escaped or as few as possible; a surrogate cannot do without."""
    if escaped or any("\ud800" <= character <= "\udfff" for character in text):
        units = text.encode("utf-16-be", "surrogatepass")
        return '"' + "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)) + '"'
    return json.dumps(text, ensure_ascii=False)


SPACE = st.sampled_from(["", "", " ", "\n\t", "\r\n  "])
STRING = st.builds(lambda text, escaped: spelled_text(text, escaped=escaped), TEXT, st.booleans())
MEMBER_NAME = st.builds(lambda text, escaped: spelled_text(text, escaped=escaped), NAME, st.booleans())


@st.composite
def arrays(draw: st.DrawFn, children: st.SearchStrategy[str]) -> str:
    space = draw(SPACE)
    return "[" + space + f"{space},".join(draw(st.lists(children, max_size=3))) + space + "]"


@st.composite
def objects(draw: st.DrawFn, children: st.SearchStrategy[str]) -> str:
    members = draw(st.lists(st.tuples(MEMBER_NAME, children), max_size=3, unique_by=lambda m: json.loads(m[0])))
    space = draw(SPACE)
    return "{" + ",".join(f"{space}{name}{space}:{space}{value}" for name, value in members) + space + "}"


DOCUMENT = st.recursive(
    st.one_of(LITERAL, SPELLED, STRING), lambda inner: st.one_of(arrays(inner), objects(inner)), max_leaves=20
)


def respelled(text: str) -> str:
    """The same value, members in reverse order and with other white space; number tokens stay as they are."""

    def turned(value: object) -> object:
        match value:
            case dict():
                return {name: turned(value[name]) for name in reversed(value)}
            case list():
                return [turned(item) for item in value]
            case tuple():
                return f"\x00{value[0]}\x00"
            case _:
                return value

    tokens = json.loads(text, parse_int=lambda token: (token,), parse_float=lambda token: (token,))
    written = json.dumps(turned(tokens), indent=3, separators=(" ,", " :\t"))
    return written.replace('"\\u0000', "").replace('\\u0000"', "")


@properties
@given(DOCUMENT)
@example('{"b":{"#":1.5,"a":[]},"a":"#"}')
def test_c12_member_order_and_white_space_do_not_matter(text: str) -> None:
    other = respelled(text)
    assert reference(other) == reference(text)
    assert canonical(other) == canonical(text)
    assert same(f" {text}\n", other)


@properties
@given(DOCUMENT, DOCUMENT)
@example('{"#":"5e-1"}', "0.5")
@example('{"#":{"#":"5e-1"}}', '{"#":0.5}')
@example('{"#":{"a":1}}', '{"#":{"a":1.0}}')
@example('{"#":{"#":1}}', '{"#":1}')
@example('{"##":1}', '{"#":1}')
@example('["\\ud83d","\\ude00"]', '["\\ud83d\\ude00"]')
def test_two_documents_are_the_same_exactly_if_the_reference_says_so(one: str, other: str) -> None:
    assert (canonical(one) == canonical(other)) == (reference(one) == reference(other))


@properties
@given(st.data())
def test_documents_from_a_tiny_world_collide_only_where_they_should(data: st.DataObject) -> None:
    """Few leaves and names, so that equal pairs really occur and both directions are exercised."""
    leaf = st.sampled_from(["1", "1.0", '"1"', "0.5", "5e-1", '"5e-1"', "null"])
    names = st.sampled_from(['"#"', '"\\u0023"', '"##"'])
    node = st.builds(lambda name, value: f"{{{name}:{value}}}", names, leaf)
    document = st.one_of(leaf, node, st.builds(lambda name, value: f"{{{name}:{value}}}", names, node))
    one, other = data.draw(document), data.draw(document)
    assert (canonical(one) == canonical(other)) == (reference(one) == reference(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", '"1"'),
        ("[1,2]", "[2,1]"),
        ('{"a":null}', "{}"),
        ("null", '"null"'),
        ("true", "1"),
        ("false", "0"),
        ("[]", "{}"),
        ("[[],[]]", "[[[]]]"),
        ('{"a":{"b":1}}', '{"a":1,"b":1}'),
        ('"\u00e9"', '"e\u0301"'),
        ('"\\ud800"', '"\\udbff"'),
        ('"\\ud800"', '"\\\\ud800"'),
        ('"\\ud83d\\ude00"', '"\\ude00\\ud83d"'),
        ("0.5", '{"#":"5e-1"}'),
        ("0.5", '"5e-1"'),
        ("1", "-1"),
        ("0.5", "-0.5"),
        ("1e30", "-1e30"),
    ],
)
def test_different_values_differ(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)
    assert not same(one, other)


def test_escaped_and_plain_characters_are_the_same() -> None:
    assert canonical('"\\u0061\\/\\u00e9\\ud83d\\ude00"') == canonical('"a/\u00e9\U0001f600"')


# --- the raw fallback --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"\\u0061":2}',
        b'[{"x":{"a":1,"a":2}}]',
        b"NaN",
        b"[Infinity]",
        b"[-Infinity]",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-32-le"),
        b"{",
        b"{} {}",
        b"[1,]",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"'a'",
        b'"a\tb"',
        b" ",
        b"\x0b1",
        b"\xc2\xa01",
        "[\uff11]".encode(),
        b"amount=1",
    ],
)
def test_what_is_not_exactly_json_is_compared_by_its_bytes(body: bytes) -> None:
    for strategy in (canonical_json, selected_fields("a")):
        assert strategy(content(body)) == raw_bytes(content(body))
        assert same(body, body, strategy)
        assert not same(body, body + b" ", strategy)


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/xml", "application/jsonp", "text/json-seq"])
def test_another_media_type_is_compared_by_its_bytes(media_type: str) -> None:
    one, other = (canonical_json(content(body, media_type)) for body in (b'{"a":1}', b'{"a": 1}'))
    assert one != other
    assert one != canonical_json(content(b'{"a":1}'))


@pytest.mark.parametrize("media_type", [JSON_TYPE, "application/merge-patch+json", "application/vnd.shop.v2+json"])
def test_json_media_types_are_compared_by_value(media_type: str) -> None:
    assert canonical_json(content(b'{"a": 1.0}', media_type)) == canonical(b'{"a":1}')


@properties
@given(st.one_of(st.binary(max_size=30), DOCUMENT.map(lambda text: canonical_json(content(text)))))
def test_a_raw_body_is_never_taken_for_a_canonical_form(body: bytes) -> None:
    """Not even when the body is a canonical form, with or without its first byte."""
    for sent in (body, body[1:]):
        form = canonical_json(content(sent, "text/plain"))
        assert form == raw_bytes(content(sent))
        assert form[:1] != canonical(b"null")[:1]


def test_an_empty_body_is_the_same_whatever_its_media_type_and_unlike_any_json() -> None:
    empty = {canonical_json(content(b"", media_type)) for media_type in (JSON_TYPE, "", "text/plain")}
    assert len(empty) == 1
    assert not empty & {canonical(text) for text in ('""', "{}", "[]", "null", "0")}
    assert not same(b"", b" ")


@pytest.mark.parametrize("bracket", ["[]", '{"a":}'], ids=["arrays", "objects"])
def test_a_body_nested_100_000_deep_is_compared_by_its_bytes(bracket: str) -> None:
    body = (bracket[:-1] * 100_000 + "1" + bracket[-1] * 100_000).encode()
    for strategy in (canonical_json, selected_fields("a")):
        assert strategy(content(body)) == raw_bytes(content(body))


@pytest.mark.parametrize("leaf", ["1", "0.5", '"["', '{"#":2.5}'])
@pytest.mark.parametrize("opening", ["[", '{"a":', '{"#":'])
def test_the_nesting_limit_is_exact_whatever_the_leaf(opening: str, leaf: str) -> None:
    def nested(levels: int) -> str:
        around = levels - leaf.count("{")
        return opening * around + leaf + {"[": "]", "{": "}"}[opening[0]] * around

    for beside in ("", ' ["[[[", [], [], {}]'):
        wide = f"[{beside}, " if beside else ""
        levels = NESTING_MAX - bool(beside)
        closing = "]" if beside else ""
        canonical(wide + nested(levels) + closing)
        deeper = content(wide + nested(levels + 1) + closing)
        assert canonical_json(deeper) == raw_bytes(deeper)


def test_a_wide_body_is_not_taken_for_a_deep_one() -> None:
    assert same("[" + "[],{}," * 500 + "[1.5]]", "[" + "[ ], {} ," * 500 + "[15e-1]]")


def test_the_form_does_not_depend_on_how_deep_the_stack_already_is() -> None:
    """600 levels fit a fresh stack of the usual 1000 frames and not one that is already half used."""

    def from_deep(frames: int, body: RequestContent) -> bytes:
        return from_deep(frames - 1, body) if frames else canonical_json(body)

    for levels in (NESTING_MAX, 600):
        body = content("[" * levels + "0.5" + "]" * levels)
        assert from_deep(450, body) == canonical_json(body)


# --- strategies --------------------------------------------------------------------------------------------


def test_raw_bytes_sees_every_byte() -> None:
    assert same(b'{"a":1}', b'{"a":1}', raw_bytes)
    assert not same(b'{"a":1}', b'{"a": 1}', raw_bytes)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ('{"amount":5,"note":"a"}', '{"note":"b","amount":5.0}', True),
        ('{"amount":5}', '{"amount":6}', False),
        ('{"amount":5}', '{"amount":"5"}', False),
        ('{"amount":0.5}', '{"amount":0.25}', False),
        ('{"amount":null}', "{}", False),
        ('{"customer":{"id":7,"name":"a"}}', '{"customer":{"name":"b","id":7}}', True),
        ('{"customer":{"id":7}}', '{"customer":{"id":8}}', False),
        ('{"customer":{"id":null}}', '{"customer":{}}', False),
        ('{"customer":{}}', '{"customer":null}', True),
        ('{"customer":{}}', '{"customer":[{"id":7}]}', True),
        ('{"customer":1.5}', '{"customer":2.5}', True),
        ('{"customer":{"#":1,"id":7}}', '{"customer":{"#":2,"id":7}}', True),
        ('{"customer":{"#":1,"id":7}}', '{"customer":{"#":1,"id":8}}', False),
        ('{"#":1,"amount":5}', '{"amount":5}', True),
        ('{"#":1,"amount":5}', '{"#":1,"amount":6}', False),
        ("[1]", "[2]", False),
        ("[1]", "[1.0]", True),
        ("1.5", "2.5", False),
        ("1.5", "{}", False),
    ],
)
def test_selected_fields_sees_only_its_fields(one: str, other: str, expected: bool) -> None:
    assert same(one, other, selected_fields("amount", "customer.id")) is expected


def test_selected_fields_reaches_a_member_called_number_sign() -> None:
    strategy = selected_fields("a.#")
    assert not same('{"a":{"#":1}}', '{"a":{"#":2}}', strategy)
    assert not same('{"a":{"#":"5e-1"}}', '{"a":0.5}', strategy)
    assert same('{"a":0.5}', '{"a":0.25}', strategy)  # a number has no members, whatever its form


def test_selected_fields_do_not_depend_on_their_order_but_on_their_names() -> None:
    body = content('{"a":1,"b":1}')
    assert selected_fields("b", "a", "b")(body) == selected_fields("a", "b")(body)
    assert selected_fields("a")(body) != selected_fields("b")(body)
    assert selected_fields("a")(content('{"a":1}')) != canonical('{"a":1}')


def test_selected_fields_refuse_paths_that_select_nothing() -> None:
    with pytest.raises(ValueError, match="at least one path"):
        selected_fields()
    for path in ("", ".", "a.", ".a", "a..b"):
        with pytest.raises(ValueError, match="has an empty part"):
            selected_fields("ok", path)


def test_a_custom_strategy_decides_and_never_meets_one_of_ours() -> None:
    def by_length(request: RequestContent) -> bytes:
        return b"%d" % len(request.body)

    assert same(b"ab", b"cd", by_length)
    assert not same(b"ab", b"abc", by_length)
    request = content(b"[1]")
    for ours in (canonical_json, raw_bytes, selected_fields("a")):
        mimic = partial(ours)
        assert mimic(request) == ours(request)
        assert fingerprint(request, mimic, key=KEY) != fingerprint(request, ours, key=KEY)


def test_a_strategy_that_returns_something_else_is_named() -> None:
    def wordy(request: RequestContent) -> bytes:
        return "text"  # type: ignore[return-value]

    with pytest.raises(TypeError, match=r"wordy.* returned str, not bytes"):
        fingerprint(content(), wordy, key=KEY)


# --- the hash ----------------------------------------------------------------------------------------------


def test_a_fingerprint_has_16_bytes_and_is_unrelated_under_another_key() -> None:
    request = content(b'{"amount":5}')
    prints = {fingerprint(request, canonical_json, key=bytes([number]) * 16) for number in range(50)}
    assert len(prints) == 50
    assert {found[16:] for found in prints} == {b"j"}, "the name of its form"
    assert fingerprint(request, canonical_json, key=KEY) == fingerprint(request, canonical_json, key=KEY)


def test_without_the_key_the_hash_cannot_be_recomputed() -> None:
    """BLAKE2b itself, given the same framing without a key, must not lead to the stored bytes."""
    framed = b"7:onefold7:/orders0:1:r"
    printed = fingerprint(content(), raw_bytes, key=KEY)
    assert blake2b(framed, digest_size=16, key=KEY, person=b"onefold.asked.2").digest() + b"r" == printed
    assert blake2b(framed, digest_size=16, person=b"onefold.asked.2").digest() + b"r" != printed


@pytest.mark.parametrize("size", [0, 15, 65])
def test_a_key_that_is_no_digest_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"key has {size} bytes, needs 16 to 64"):
        fingerprint(content(), raw_bytes, key=bytes(size))


PART = st.text(alphabet="a1:/\ud800\udcff", max_size=4)


@properties
@given(st.tuples(PART, PART, PART), st.tuples(PART, PART, PART))
@example(("/a", "b", ""), ("/ab", "", ""))
@example(("a", "1:a", ""), ("a1:", "a", ""))
@example(("", "", "a"), ("", "a", ""))
@example(("a", "", "0:"), ("a0:", "", ""))
@example(("\ud800", "", ""), ("\udcff", "", ""))
def test_no_byte_can_move_between_path_query_and_body(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    def printed(parts: tuple[str, str, str]) -> bytes:
        path, query, body = parts
        raw = [part.encode("utf-8", "surrogatepass") for part in (query, body)]
        request = RequestContent(path=path, query=raw[0], media_type="text/plain", body=raw[1])
        return fingerprint(request, raw_bytes, key=KEY)

    assert (printed(one) == printed(other)) == (one == other)


def test_stored_fingerprints_stay_valid() -> None:
    """Pinned: these bytes sit in databases. A change here needs a new version of the form, not a new pin."""
    body = '{"b":[1.50,-0,1e400,12345678901234567890],"a":{"#":null,"\\ud800":"\u00e9"}}'
    assert canonical(body) == (
        b'j{"a":{"#":{"#":null,"\\ud800":"\\u00e9"}},"b":[{"#":"15e-1"},0,{"#":"1e400"},12345678901234567890]}'
    )
    assert selected_fields("b", "a.x", "a.#")(content(body)) == (
        b'f[["a.#",null],["a.x"],["b",[{"#":"15e-1"},0,{"#":"1e400"},12345678901234567890]]]'
    )
    numbers = "[1e19,-99999999999999999999,1e20,123456789012345678901,-0.001]"
    assert canonical(numbers) == (
        b'j[10000000000000000000,-99999999999999999999,{"#":"1e20"},{"#":"123456789012345678901e0"},{"#":"-1e-3"}]'
    )
    request = content(body, query=b"x=1")
    assert earlier_fingerprint(request, canonical_json, key=KEY).hex() == "8d05798054ce9e5ca9f19c25af7266a0"
    assert earlier_fingerprint(request, raw_bytes, key=KEY).hex() == "e9c986be9c9d597503b432d4aca47ba2"
    assert fingerprint(request, canonical_json, key=KEY).hex() == "176869f9e7b26fe6304eb3f4a962b4f16a"
    assert fingerprint(request, selected_fields("b", "a.x"), key=KEY)[16:] == b"fa.x,b"
