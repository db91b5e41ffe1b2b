"""What commands print: no password whatever the address looks like, and nothing that moves the cursor."""

from __future__ import annotations

import pytest

from onefold._kernel.readable import age, harmless


def test_control_characters_are_shown_as_text() -> None:
    assert harmless("a\x1b[2Jb\r\x07\u202e\nc\té") == "a\\x1b[2Jb\\r\\x07\\u202e\nc\té"


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "-"), (0.26, "0.3 s"), (119, "119.0 s"), (120, "2 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_a_span_is_said_in_the_unit_that_people_would_choose(seconds: float | None, said: str) -> None:
    assert age(seconds) == said
