"""Bodies that are compared by their parts, and bodies that are too large to be compared by value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold._http.request_identity import content_type_of
from onefold._idempotency.fingerprint import (
    CANONICAL_BYTES_MAX,
    VALUES_MAX,
    RequestContent,
    canonical_json,
    earlier_fingerprint,
    fingerprint,
    raw_bytes,
    selected_fields,
)
from onefold._idempotency.multipart import HEAD_BYTES_MAX, PARTS_MAX
from onefold.errors import ConfigurationError
from onefold.policies import named_strategy

KEY = b"k" * 16

Part = tuple[str, bytes]


def form(boundary: str, *parts: Part) -> RequestContent:
    body = b"".join(
        b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (boundary.encode(), name.encode(), content)
        for name, content in parts
    )
    return in_form(boundary, body + b"--%b--\r\n" % boundary.encode())


def in_form(boundary: str, body: bytes) -> RequestContent:
    return RequestContent("/", b"", "multipart/form-data", body, boundary.encode())


def is_raw(content: RequestContent) -> bool:
    return canonical_json(content) == raw_bytes(content)


names = st.text(alphabet="ab", min_size=1, max_size=3)
contents = st.lists(st.sampled_from([b"a", b"--", b"\r\n", b"--one", b"--two", b"\n--", b":", b"1"])).map(b"".join)
parts = st.lists(st.tuples(names, contents), max_size=4)


@given(parts, parts)
def test_forms_are_equal_where_their_parts_are(one: list[Part], other: list[Part]) -> None:
    first, second = form("one", *one), form("two", *other)
    if is_raw(first) or is_raw(second):  # a boundary inside a part: bytes are compared, and differ
        assert any(b"--one" in content or b"--two" in content for _, content in [*one, *other])
        return
    assert (canonical_json(first) == canonical_json(second)) == (one == other)


def test_a_form_without_parts_and_one_of_many_are_forms() -> None:
    assert not is_raw(form("b"))
    assert not is_raw(form("b", *[("a", b"1")] * PARTS_MAX))
    assert not is_raw(form("b", ("photo", bytes(range(256)) * 20_000))), "an upload of any size"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--b",
        b"--b--trailing",
        b"preamble\r\n--b\r\na: 1\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\na: 1\r\n\r\nx\r\n--b--\r\nepilogue",
        b"--b\na: 1\n\nx\n--b--\n",
        b"--b \r\na: 1\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\na: 1\r\n folded\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\nno header\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\na: 1\nb: 2\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\na: 1\r\nA: 2\r\n\r\nx\r\n--b--\r\n",
        b"--b\r\na: 1\r\n\r\nx\n--b\r\ny\r\n--b--\r\n",
        b"--b\r\na: 1\r\n\r\nx\r\n--bb\r\n--b--\r\n",
        b"--b\r\na: 1\r\n\r\nunfinished",
        b"--b\r\na: " + b"1" * HEAD_BYTES_MAX + b"\r\n\r\nx\r\n--b--\r\n",
    ],
)
def test_what_parsers_could_read_in_two_ways_is_compared_by_its_bytes(body: bytes) -> None:
    assert is_raw(in_form("b", body))


def test_too_many_parts_are_compared_by_their_bytes() -> None:
    assert is_raw(form("b", *[("a", b"1")] * (PARTS_MAX + 1)))


@pytest.mark.parametrize(
    ("header", "boundary", "others"),
    [
        ("multipart/form-data; boundary=abc", b"abc", b""),
        ('Multipart/Form-Data;boundary="a=b:c"', b"a=b:c", b""),
        ("multipart/form-data; charset=UTF-8; boundary=a", b"a", b"charset=UTF-8"),
        ("multipart/form-data;boundary=a;Charset=utf-8", b"a", b"charset=utf-8"),
        (
            'multipart/related; type="application/json"; start="<1>"; boundary=a',
            b"a",
            b"start=<1>;type=application/json",
        ),
        ("multipart/form-data; boundary=" + "x" * 71, b"", b""),
        ("multipart/form-data; boundary=a; boundary=b", b"", b""),
        ("multipart/form-data; boundary=a; boundary*0=b", b"", b""),
        ("multipart/form-data; boundary*0=a; boundary*1=b", b"", b""),
        ('multipart/form-data; x="; boundary=b"; boundary=a', b"", b""),
        ('multipart/form-data; x="boundary=b"; boundary=a', b"", b""),
        ("multipart/form-data; boundary=a; x", b"", b""),
        ("multipart/form-data; boundary=a; charset=utf-8; charset=latin-1", b"", b""),
        ("multipart/form-data; charset=utf-8; boundary=a; CHARSET=utf-8", b"", b""),
        ('multipart/form-data; boundary="a', b"", b""),
        ("multipart/form-data", b"", b""),
        ("application/json; charset=utf-8", b"", b""),
    ],
)
def test_a_boundary_is_read_where_all_parsers_find_the_same_one(header: str, boundary: bytes, others: bytes) -> None:
    assert content_type_of(header) == (header.partition(";")[0].lower(), boundary, others)


def test_the_same_parts_in_another_charset_are_another_form() -> None:
    content = form("b", ("a", b"\xc3\xa4"))
    assert canonical_json(content._replace(media_parameters=b"charset=utf-8")) != canonical_json(content)


def test_a_form_may_begin_with_a_line_break() -> None:
    plain = form("b", ("a", b"1"))
    assert canonical_json(plain._replace(body=b"\r\n" + plain.body)) == canonical_json(plain)
    assert is_raw(plain._replace(body=b"\r\n\r\n" + plain.body))


def test_a_form_of_the_release_before_was_compared_by_its_bytes() -> None:
    one, other = form("one", ("a", b"1")), form("two", ("a", b"1"))
    assert fingerprint(one, canonical_json, key=KEY) == fingerprint(other, canonical_json, key=KEY)
    assert earlier_fingerprint(one, canonical_json, key=KEY) == earlier_fingerprint(one, raw_bytes, key=KEY)
    assert earlier_fingerprint(one, canonical_json, key=KEY) != earlier_fingerprint(other, canonical_json, key=KEY)


# --- JSON that would keep the loop busy ---------------------------------------------------------------------------


def repeated(unit: bytes, times: int) -> RequestContent:
    return RequestContent("/", b"", "application/json", b"[" + b",".join([unit] * times) + b"]")


@pytest.mark.parametrize("unit", [b"1.5", b"1e9", b"{}", b'{"#":1}', b"[]", b'""', b"1"])
def test_a_megabyte_of_small_values_is_compared_by_its_bytes_and_the_record_says_so(unit: bytes) -> None:
    hostile = repeated(unit, CANONICAL_BYTES_MAX // (len(unit) + 1))
    for strategy in (canonical_json, selected_fields("a")):
        assert strategy(hostile) == raw_bytes(hostile)
        assert fingerprint(hostile, strategy, key=KEY)[16:] == b"r"
    at_most = repeated(unit, VALUES_MAX // (1 + unit.count(b"{") + unit.count(b"[")) - 1)
    assert canonical_json(at_most)[:1] == b"j"


def test_json_above_the_limit_is_compared_by_its_bytes_whatever_is_in_it() -> None:
    text = RequestContent("/", b"", "application/json", b'"' + b"a" * (CANONICAL_BYTES_MAX - 2) + b'"')
    assert canonical_json(text)[:1] == b"j"
    assert canonical_json(text._replace(body=text.body + b" "))[:1] == b"r"


# --- strategies with names ------------------------------------------------------------------------------------------


def test_a_strategy_of_ones_own_is_recorded_by_its_name() -> None:
    def by_length(content: RequestContent) -> bytes:
        return b"%d" % len(content.body)

    content = RequestContent("/", b"", "", b"abc")
    plain, named = (fingerprint(content, found, key=KEY) for found in (by_length, named_strategy("length", by_length)))
    assert (plain[:16], plain[16:], named[16:]) == (named[:16], b"c", b"clength")


@pytest.mark.parametrize("name", ["", "a\n", "x" * 255])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="must be 1 to 254 bytes of printable text"):
        named_strategy(name, lambda content: content.body)


def test_names_for_onefolds_own_and_paths_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="has its name already"):
        named_strategy("mine", canonical_json)
    with pytest.raises(ValueError, match="has a comma"):
        selected_fields("a,b")
    with pytest.raises(ValueError, match="take 301 bytes of each record"):
        selected_fields(*[f"{number:02}x" * 33 for number in range(3)], "a")
