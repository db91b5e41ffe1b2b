"""The Idempotency-Key header: rows C01 to C06 and C08 of the HTTP contract."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onefold._http.idempotency_key import LENGTH_MAX, KeyFault, parse_key

BOTH_MODES = pytest.mark.parametrize("strict", [True, False], ids=["strict", "lenient"])
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
BARE = "".join(sorted(set(PRINTABLE) - set(' ",;\\')))
UUID = "8e03978e-40d5-43dd-bc93-6894a57f9324"

properties = settings(max_examples=300, deadline=None)


def quoted(key: str) -> bytes:
    return b'"' + key.replace("\\", "\\\\").replace('"', '\\"').encode("ascii") + b'"'


def outcome(value: bytes, *, strict: bool) -> str | None:
    """The key, or None where the header is refused."""
    try:
        return parse_key([value], strict=strict, length_max=10_000)
    except KeyFault:
        return None


@BOTH_MODES
@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b'"8e03978e-40d5-43dd-bc93-6894a57f9324"', UUID),
        (b'  "k"  ', "k"),
        (b'\t "k" \t', "k"),
        (b'"two words"', "two words"),
        (b'" edges "', " edges "),
        (b'"a, b; c=1"', "a, b; c=1"),
        (b'"say \\"hi\\""', 'say "hi"'),
        (b'"back\\\\slash"', "back\\slash"),
        (b'"\\\\\\""', '\\"'),
    ],
)
def test_c01_a_structured_field_string_is_its_content(value: bytes, key: str, strict: bool) -> None:
    assert parse_key([value], strict=strict) == key


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b"token", "an unquoted value"),
        (b"*", "an unquoted value"),
        (UUID.encode(), "a number"),
        (b"42", "a number"),
        (b"-1", "a number"),
        (b"4.2", "a number"),
        (b"?1", "a boolean"),
        (b":YWJj:", "a byte sequence"),
        (b"@1659578233", "a date"),
        (b'%"k"', "a display string"),
        (b'("k")', "an inner list"),
        (b'("a" "b")', "an inner list"),
        (b"a, b", "an unquoted value"),
        (b'k="v"', "an unquoted value"),
        (b'"a", "b"', "a list of keys"),
        (b'"a","b"', "a list of keys"),
        (b'"a" , "b"', "a list of keys"),
        (b'"a",', "a list of keys"),
        (b'"a";x=1, "b"', "a list of keys"),
    ],
)
def test_c02_strict_mode_refuses_every_other_type(value: bytes, named: str) -> None:
    with pytest.raises(KeyFault, match=named):
        parse_key([value], strict=True)


@BOTH_MODES
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'"a\\b"', 'bad escape at character 3: only \\" and \\\\ are known'),
        (b'"a\\', 'bad escape at character 3: only \\" and \\\\ are known'),
        (b'"caf\xc3\xa9"', "byte 0xc3 at character 5 is not printable ASCII"),
        (b'"a\tb"', "byte 0x09 at character 3 is not printable ASCII"),
        (b'"a\x00b"', "byte 0x00 at character 3 is not printable ASCII"),
        (b'"a\x7fb"', "byte 0x7f at character 3 is not printable ASCII"),
        (b'"a\r\nb"', "byte 0x0d at character 3 is not printable ASCII"),
        (b'"open', "the closing quote is missing after character 5"),
        (b'"', "the closing quote is missing after character 1"),
        (b'"open\\"', "the closing quote is missing after character 7"),
        (b'"k"x', "unexpected 'x' at character 4"),
        (b'"k" x', "unexpected byte 0x20 at character 4"),
        (b'"k""l"', "unexpected '\"' at character 4"),
        (b'"k"\n', "unexpected byte 0x0a at character 4"),
    ],
)
def test_c03_a_broken_string_is_refused_with_its_place(value: bytes, reason: str, strict: bool) -> None:
    with pytest.raises(KeyFault) as refused:
        parse_key([value], strict=strict)
    assert refused.value.reason == str(refused.value) == reason


@BOTH_MODES
@pytest.mark.parametrize(
    "parameters",
    [
        b";x=1",
        b';x=1;y="z";flag',
        b"; spaced",
        b";   x=1",
        b";*star-_.*9=?0",
        b";t=tok/en:*",
        b";d=-123456789012.123",
        b";i=-123456789012345",
        b";at=@-1",
        b";b=::",
        b";b=:YQ==:",
        b";b=:YQ:",
        b";b=:YWJj:",
        b';s=""',
        b';s="a\\"b\\\\, ; c"',
        b';n=%"f%c3%bc \\ ; x"',
        b";x=1;x=2",
        b";x=1 ",
    ],
)
def test_c04_parameters_are_checked_and_ignored(parameters: bytes, strict: bool) -> None:
    assert parse_key([b'"k"' + parameters], strict=strict) == "k"


@BOTH_MODES
@pytest.mark.parametrize(
    "parameters",
    [
        b";",
        b"; ",
        b";;x",
        b";\tx=1",
        b" ;x=1",
        b";X=1",
        b";1=x",
        b";x=",
        b";x= 1",
        b";x =1",
        b";x=1a",
        b";x=1.",
        b";x=1.2345",
        b";x=1234567890123456",
        b";x=1234567890123.1",
        b";x=--1",
        b";x=?2",
        b";x=@1.5",
        b";x=:Y:",
        b";x=:=YQ=:",
        b";x=:Y!==:",
        b";x=:YQ==",
        b';x="open',
        b';x="bad\\escape"',
        b";x=(1 2)",
        b';x=%"%C3%BC"',
        b';x=%"%c3"',
        b';x=%"%ff"',
        b';x=%"%ed%a0%80"',
        b';x=%"100%"',
        b";x=\xc3\xa9",
        b";x=1,",
    ],
)
def test_c04_a_broken_parameter_spoils_the_header(parameters: bytes, strict: bool) -> None:
    with pytest.raises(KeyFault):
        parse_key([b'"k"' + parameters], strict=strict)


@BOTH_MODES
@pytest.mark.parametrize(
    "values",
    [
        [b'"a"', b'"b"'],
        [b'"a"', b'"a"'],
        [b'"a"', b""],
        [b"", b'"a"'],
        [b"a", b"b", b"c"],
        [b'"a", "b"'],
        [b'"a", "a"'],
        [b'"a",'],
        [b',"a"'],
        [b"a,b"],
        [b"a, b"],
        [b"a,"],
    ],
)
def test_c05_two_lines_are_refused_also_when_joined_by_a_comma(values: list[bytes], strict: bool) -> None:
    with pytest.raises(KeyFault):
        parse_key(values, strict=strict)


def test_c05_the_reason_counts_the_lines_and_finds_the_comma() -> None:
    with pytest.raises(KeyFault, match="expected one Idempotency-Key line, got 2"):
        parse_key([b'"a"', b'"a"'], strict=False)
    with pytest.raises(KeyFault, match="a list of keys: comma at character 5"):
        parse_key([b'"a" , "b"'], strict=False)
    with pytest.raises(KeyFault, match="a list of keys: comma at character 2"):
        parse_key([b"a, b"], strict=False)


def test_no_line_at_all_is_refused_rather_than_an_index_error() -> None:
    with pytest.raises(KeyFault, match="got 0"):
        parse_key([], strict=False)


@pytest.mark.parametrize(
    "bare",
    [UUID, "k", "42", "-1", "order_17:retry", "YWJj+/==", "a=b", "user@example.com", "50%", "what?", "f(x)"],
)
def test_c06_a_bare_key_is_the_same_key_as_in_quotes(bare: str) -> None:
    assert parse_key([bare.encode()], strict=False) == bare == parse_key([quoted(bare)], strict=True)
    assert parse_key([b" \t" + bare.encode() + b"\t "], strict=False) == bare


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"two words", "byte 0x20 at character 4 is not allowed in a key without double quotes"),
        (b"tab\tbed", "byte 0x09 at character 4 is not allowed in a key without double quotes"),
        (b"k;x=1", "';' at character 2 is not allowed in a key without double quotes"),
        (b'k"', "'\"' at character 2 is not allowed in a key without double quotes"),
        (b"a\\b", "'\\' at character 2 is not allowed in a key without double quotes"),
        (b"caf\xe9", "byte 0xe9 at character 4 is not allowed in a key without double quotes"),
        (b"k\n", "byte 0x0a at character 2 is not allowed in a key without double quotes"),
        (b"?1", "a boolean at character 1, expected a string in double quotes"),
        (b":YQ:", "a byte sequence at character 1, expected a string in double quotes"),
        (b"@1659578233", "a date at character 1, expected a string in double quotes"),
        (b"(k)", "an inner list at character 1, expected a string in double quotes"),
        (b'%"k"', "a display string at character 1, expected a string in double quotes"),
        (b"%41", "a display string at character 1, expected a string in double quotes"),
    ],
)
def test_c06_a_bare_key_that_could_be_read_in_two_ways_is_refused(value: bytes, reason: str) -> None:
    with pytest.raises(KeyFault) as refused:
        parse_key([value], strict=False)
    assert refused.value.reason == reason


@BOTH_MODES
@pytest.mark.parametrize("value", [b"", b"   ", b"\t", b'""', b' "" ', b'"";x=1'])
def test_c08_an_empty_key_is_refused(value: bytes, strict: bool) -> None:
    with pytest.raises(KeyFault, match="empty"):
        parse_key([value], strict=strict)


@pytest.mark.parametrize("quote", [b"", b'"'], ids=["bare", "quoted"])
def test_c08_a_key_is_accepted_up_to_the_limit_and_refused_above(quote: bytes) -> None:
    def value(length: int) -> bytes:
        return quote + b"k" * length + quote

    assert parse_key([value(LENGTH_MAX)], strict=False) == "k" * 255
    with pytest.raises(KeyFault, match="the key has 256 characters, at most 255 are accepted"):
        parse_key([value(256)], strict=False)
    with pytest.raises(KeyFault, match="the key has 10000 characters"):
        parse_key([value(10_000)], strict=False)
    assert parse_key([value(8)], strict=False, length_max=8) == "k" * 8
    with pytest.raises(KeyFault):
        parse_key([value(9)], strict=False, length_max=8)


def test_c08_the_limit_counts_characters_of_the_key_not_its_escapes_or_parameters() -> None:
    long_parameter = b';x="' + b"p" * 500 + b'"'
    assert parse_key([b'"' + b"\\\\" * 255 + b'"' + long_parameter], strict=True) == "\\" * 255
    with pytest.raises(KeyFault, match="256 characters"):
        parse_key([b'"' + b"\\\\" * 256 + b'"'], strict=True)


@pytest.mark.parametrize("key", ["' OR 1=1; --", "$1; DROP TABLE x", "{a}*?[b]", "%s%n", "../../x", "\\r\\nGET"])
def test_c08_metacharacters_of_stores_are_plain_data(key: str) -> None:
    assert parse_key([quoted(key)], strict=True) == key


@BOTH_MODES
@pytest.mark.parametrize(
    "value",
    [
        b'"' + b"secret" * 2000,
        b"secret" * 2000 + b" ",
        b'"k";' + b"SECRET" * 2000,
        b'"' + b"secret" * 2000 + b'"x',
    ],
    ids=["unterminated", "bare", "parameter", "trailing"],
)
def test_a_reason_does_not_repeat_the_value(value: bytes, strict: bool) -> None:
    with pytest.raises(KeyFault) as refused:
        parse_key([value], strict=strict)
    assert "secret" not in refused.value.reason.lower()


def test_a_refusal_survives_pickling_with_its_reason() -> None:
    assert pickle.loads(pickle.dumps(KeyFault("why"))).reason == "why"


@properties
@given(st.text(alphabet=PRINTABLE, min_size=1, max_size=LENGTH_MAX), st.booleans())
@example(PRINTABLE, True)
def test_any_printable_key_survives_quoting(key: str, strict: bool) -> None:
    assert parse_key([quoted(key)], strict=strict) == key


@properties
@given(st.text(alphabet=BARE, min_size=1, max_size=LENGTH_MAX).filter(lambda key: key[0] not in "(:?@%"))
@example("!" + BARE)
def test_lenient_bare_equals_strict_quoted(key: str) -> None:
    assert parse_key([key.encode("ascii")], strict=False) == parse_key([quoted(key)], strict=True)


@properties
@given(
    st.one_of(
        st.binary(max_size=40).map(lambda value: [value]),
        st.text(alphabet='"\\;=:@?%*(), a1.-', max_size=30).map(lambda text: [b'"k"' + text.encode()]),
        st.lists(st.binary(max_size=5), max_size=3),
    ),
    st.booleans(),
)
def test_arbitrary_bytes_give_a_bounded_key_or_malformed(values: list[bytes], strict: bool) -> None:
    reason = None
    try:
        key = parse_key(values, strict=strict, length_max=20)
    except KeyFault as refused:
        reason = refused.reason
    if reason is not None:
        assert 0 < len(reason) <= 100
    else:
        assert len(values) == 1
        assert 1 <= len(key) <= 20
        assert set(key) <= set(PRINTABLE)


def reference_string(value: bytes) -> str | None:
    """RFC 9651, 4.2.5, failed message by failed message; None where it says to fail. Knows no parameters."""
    characters = list(value.strip(b" ").decode("latin-1"))
    if not characters or characters.pop(0) != '"':
        return None
    output = ""
    while characters:
        character = characters.pop(0)
        if character == "\\":
            if not characters or characters[0] not in '"\\':
                return None
            output += characters.pop(0)
        elif character == '"':
            return output if output and not characters else None
        elif character not in PRINTABLE:
            return None
        else:
            output += character
    return None


STRINGLIKE = st.text(alphabet='"\\ ,a\x1f\xe9', max_size=8).map(lambda text: f'"{text}"'.encode("latin-1"))


@properties
@given(st.one_of(STRINGLIKE, st.text(alphabet='"\\ ,a', max_size=6).map(str.encode)))
@example(b'"\\\\"')
@example(b'"a" "b"')
def test_strict_mode_agrees_with_the_algorithm_of_the_rfc(value: bytes) -> None:
    assert outcome(value, strict=True) == reference_string(value)


@properties
@given(STRINGLIKE)
def test_what_starts_with_a_quote_means_the_same_in_both_modes(value: bytes) -> None:
    assert outcome(value, strict=False) == outcome(value, strict=True)


def test_the_reference_algorithm_tells_good_from_bad() -> None:
    """A control: an oracle that refuses or accepts everything would agree with a broken parser."""
    assert reference_string(b' "a\\"b" ') == 'a"b'
    for bad in (b'"a\\b"', b'"a', b'"a"b', b"a", b'""', b'"\x1f"'):
        assert reference_string(bad) is None


def test_a_long_hostile_value_is_refused_by_position_not_by_search() -> None:
    """Were any pattern to backtrack, these would take minutes; the answer also has to name the far end."""
    length = 200_000
    with pytest.raises(KeyFault, match=f"missing after character {2 * length + 1}"):
        parse_key([b'"' + b"\\\\" * length], strict=True)
    with pytest.raises(KeyFault, match=f"parameter at character {length * 2 + 4} "):
        parse_key([b'"k"' + b";a" * length + b";"], strict=True)
    with pytest.raises(KeyFault, match=f"character {length + 1} "):
        parse_key([b"a" * length + b" x"], strict=False)
