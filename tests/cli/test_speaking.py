"""What commands print: no password whatever the address looks like, and nothing that moves the cursor."""

from __future__ import annotations

import pytest

from onefold.cli.speaking import address, age, harmless


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("shop.db", "shop.db"),
        ("local", "local"),
        ("postgresql://127.0.0.1:5432/shop?password=secret", "postgresql://127.0.0.1:5432/shop"),
        ("postgresql://ann:secret@db/shop", "postgresql://db/shop"),
        ("nats://ann:secret@one:4222,nats://ann:secret@two:4222", "nats://..."),
        ("nats://one:4222,nats://two:4222", "nats://one:4222,..."),
        ("kafka://ann:secret@one:9092,two:9092", "kafka://one:9092,..."),
        ("redis://ann:sec/ret@host", "redis://..."),
        ("redis://ann:sec?ret@host", "redis://..."),
        ("redis://ann:sec@ret@host/0", "redis://host/0"),
        ("redis://ann:s@ec/ret@host", "redis://..."),
        ("redis://ann:[secret@host", "redis://..."),
    ],
)
def test_an_address_is_shown_without_its_secrets(given: str, shown: str) -> None:
    assert address(given) == shown
    assert "sec" not in address(given)


def test_control_characters_are_shown_as_text() -> None:
    assert harmless("a\x1b[2Jb\r\x07\u202e\nc\té") == "a\\x1b[2Jb\\r\\x07\\u202e\nc\té"


@pytest.mark.parametrize(
    ("seconds", "said"), [(None, "-"), (0.26, "0.3 s"), (119, "119.0 s"), (120, "2 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_a_span_is_said_in_the_unit_that_people_would_choose(seconds: float | None, said: str) -> None:
    assert age(seconds) == said
