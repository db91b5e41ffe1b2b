"""Entity tags and preconditions without any I/O: what is read, and what is judged."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from onefold._http.condition_errors import ConditionMalformed
from onefold._http.etags import (
    BYTES_MAX,
    TAGS_MAX,
    TAGS_PATTERN,
    EntityTag,
    Preconditions,
    TagList,
    content_tag,
    judge,
    make_tag,
    read_preconditions,
)
from onefold.errors import ProgrammerError

ONE, TWO, WEAK = EntityTag("1"), EntityTag("2"), EntityTag("1", weak=True)
ANY = TagList(any=True)


def only(*tags: EntityTag) -> TagList:
    return TagList(tags)


#: If-Match, If-None-Match, the current tag (None: there is nothing), what a write is told, what a read is told.
TABLE = [
    (None, None, ONE, "holds", "holds"),
    (None, None, None, "holds", "holds"),
    (only(ONE), None, ONE, "holds", "holds"),
    (only(TWO, ONE), None, ONE, "holds", "holds"),
    (only(TWO), None, ONE, "failed", "failed"),
    (only(WEAK), None, ONE, "failed", "failed"),
    (only(ONE), None, WEAK, "failed", "failed"),
    (only(WEAK), None, WEAK, "failed", "failed"),
    (only(ONE), None, None, "failed", "failed"),
    (ANY, None, ONE, "holds", "holds"),
    (ANY, None, None, "failed", "failed"),
    (None, ANY, None, "holds", "holds"),
    (None, ANY, ONE, "failed", "not modified"),
    (None, only(ONE), ONE, "failed", "not modified"),
    (None, only(WEAK), ONE, "failed", "not modified"),
    (None, only(TWO), ONE, "holds", "holds"),
    (None, only(ONE), None, "holds", "holds"),
    # If-Match comes first: where it fails, the other is not looked at.
    (only(TWO), only(ONE), ONE, "failed", "failed"),
    (only(ONE), only(ONE), ONE, "failed", "not modified"),
    (only(ONE), only(TWO), ONE, "holds", "holds"),
]


@pytest.mark.parametrize(("if_match", "if_none_match", "current", "write", "read"), TABLE)
def test_the_table_of_rfc_9110(
    if_match: TagList | None, if_none_match: TagList | None, current: EntityTag | None, write: str, read: str
) -> None:
    asked = Preconditions(if_match, if_none_match)
    assert {judge(asked, current, method) for method in ("PUT", "PATCH", "POST", "DELETE")} == {write}
    assert {judge(asked, current, method) for method in ("GET", "HEAD")} == {read}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([b'"1"'], only(ONE)),
        ([b'W/"1"'], only(WEAK)),
        ([b' "1" , W/"1",,"2" '], only(ONE, WEAK, TWO)),
        ([b'"1"', b'"2"'], only(ONE, TWO)),
        ([b'"a,b"'], only(EntityTag("a,b"))),
        ([b'""'], only(EntityTag(""))),
        ([b'"\xe9"'], only(EntityTag("\xe9"))),
        ([b" * "], ANY),
    ],
)
def test_a_list_of_tags_is_read(lines: list[bytes], expected: TagList) -> None:
    assert read_preconditions(lines, []) == Preconditions(expected, None)
    assert read_preconditions([], lines) == Preconditions(None, expected)


@pytest.mark.parametrize(
    "line",
    [
        b"", b",", b"1", b"'1'", b'"1', b'1"', b'w/"1"', b'W/ "1"', b'"1" "2"', b'"1""2"', b'*, "1"', b'"1", *', b"**",
        b'"a b"', b'"a\tb"', b'"a\x7fb"', b'"' + b"x" * BYTES_MAX + b'"', b",".join([b'"1"'] * (TAGS_MAX + 1)),
    ],
)  # fmt: skip
def test_what_is_no_list_of_tags_is_refused(line: bytes) -> None:
    with pytest.raises(ConditionMalformed, match="If-None-Match"):
        read_preconditions([], [line])


characters = [chr(code) for code in range(0x21, 0x100) if chr(code) not in '"\x7f']
tags = st.builds(EntityTag, st.text(characters, max_size=8), st.booleans())


@given(st.lists(tags, min_size=1, max_size=6), st.sampled_from([",", ", ", " ,\t", ",,"]))
def test_what_is_written_is_read_again(given: list[EntityTag], between: str) -> None:
    line = between.join(map(str, given)).encode("latin-1")
    assert read_preconditions([line], []).if_match == only(*given)


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(line: bytes) -> None:
    try:
        found = read_preconditions([line], []).if_match
    except ConditionMalformed:
        return
    assert found is not None
    assert found.any or found.tags


@given(st.none() | tags, st.none() | tags, st.none() | tags)
def test_a_write_passes_only_by_the_very_state_that_it_names(
    if_match: EntityTag | None, if_none_match: EntityTag | None, current: EntityTag | None
) -> None:
    asked = Preconditions(if_match and only(if_match), if_none_match and only(if_none_match))
    if judge(asked, current, "PUT") == "holds":
        assert if_match is None or (if_match == current and not if_match.weak)
        assert if_none_match is None or current is None or if_none_match.opaque != current.opaque


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (3, '"3"'),
        ("a1", '"a1"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (datetime(2026, 5, 1, tzinfo=UTC), '"2026-05-01T00:00:00+00:00"'),
        (datetime(2026, 5, 1, 2, tzinfo=timezone(timedelta(hours=2))), '"2026-05-01T00:00:00+00:00"'),
        (b"\x01\xff", '"01ff"'),
    ],
)
def test_a_version_becomes_a_strong_tag(version: object, expected: str) -> None:
    assert str(make_tag(version, "PUT /orders/{}")) == expected


@pytest.mark.parametrize("version", [None, True, 1.5, "", "a b", 'a"b', "a\nb", "\u20ac", Decimal(1), object()])
def test_what_cannot_be_a_tag_names_the_route(version: object) -> None:
    with pytest.raises(ProgrammerError, match="PUT /orders/"):
        make_tag(version, "PUT /orders/{}")


class Model(BaseModel):
    item: str
    amount: Decimal


@dataclasses.dataclass
class Plain:
    item: str


def test_content_has_a_tag_that_changes_with_it() -> None:
    assert content_tag({"a": 1, "b": 2}) == content_tag({"b": 2, "a": 1})
    assert content_tag({"a": 1}) != content_tag({"a": 2})
    assert content_tag(Model(item="x", amount=Decimal("1.0"))) != content_tag(Model(item="y", amount=Decimal("1.0")))
    assert content_tag(Plain("x")) == content_tag({"item": "x"})
    make_tag(content_tag({"a": Decimal(1), "b": datetime.now(UTC)}), "PUT /orders/{}")
    with pytest.raises(ProgrammerError, match="content_tag"):
        content_tag(object())


_LISTS = st.text(alphabet=st.sampled_from('W/",* !a0'), max_size=12)


@given(_LISTS | st.from_regex(TAGS_PATTERN, fullmatch=True).filter(lambda text: len(text) < 500))
def test_what_the_description_calls_a_list_of_tags_is_read(text: str) -> None:
    if re.search(TAGS_PATTERN, text):
        assert read_preconditions([text.encode("latin-1")], []).given
    elif text.strip() in ("*", '"a"', 'W/"a"', '"a", "0"'):
        assert text != text.strip()
