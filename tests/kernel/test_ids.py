"""UUIDv7 by the layout of RFC 9562."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._kernel.ids import RANDOM_BYTES, uuid7, uuid7_ms

MS_MAX = 2**48 - 1
MS = st.integers(min_value=0, max_value=MS_MAX)
RANDOM = st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES)

properties = settings(max_examples=200, deadline=None)


def test_the_example_of_the_rfc_comes_out_bit_for_bit() -> None:
    """RFC 9562, A.6: 22 February 2022, 14:22:22 GMT-5, rand_a 0xCC3, rand_b 0x18C4DC0C0C07398F."""
    random_bits = (0xCC3 << 62 | 0x18C4DC0C0C07398F).to_bytes(RANDOM_BYTES, "big")
    assert str(uuid7(1645557742000, random_bits)) == "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"
    assert uuid7_ms("017F22E2-79B0-7CC3-98C4-DC0C0C07398F") == 1645557742000


@properties
@given(MS, RANDOM)
def test_the_time_reads_back_and_version_and_variant_are_set(now_ms: int, random_bits: bytes) -> None:
    made = uuid7(now_ms, random_bits)
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert uuid7_ms(str(made)) == uuid7_ms(str(made).upper()) == now_ms


@properties
@given(st.tuples(MS, RANDOM), st.tuples(MS, RANDOM))
def test_an_earlier_id_sorts_first_as_text(one: tuple[int, bytes], other: tuple[int, bytes]) -> None:
    if one[0] < other[0]:
        assert str(uuid7(*one)) < str(uuid7(*other))
    elif one[0] > other[0]:
        assert str(uuid7(*one)) > str(uuid7(*other))


def test_each_of_the_74_random_bits_counts_and_the_top_6_do_not() -> None:
    def made(bit: int) -> uuid.UUID:
        return uuid7(0, (1 << bit).to_bytes(RANDOM_BYTES, "big"))

    nothing = uuid7(0, bytes(RANDOM_BYTES))
    used = [made(bit) for bit in range(74)]
    assert len({nothing, *used}) == 75
    assert {made(bit) for bit in range(74, 80)} == {nothing}
    assert uuid7(0, b"\xff" * RANDOM_BYTES).int.bit_count() == 74 + 3 + 1  # all random bits, 0b0111, 0b10


@pytest.mark.parametrize("now_ms", [-1, MS_MAX + 1])
def test_a_time_that_does_not_fit_is_refused(now_ms: int) -> None:
    with pytest.raises(ValueError, match=f"now_ms is {now_ms}, must be"):
        uuid7(now_ms, bytes(RANDOM_BYTES))


@pytest.mark.parametrize("size", [0, 9, 11, 16])
def test_another_amount_of_randomness_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"random_bits has {size} bytes, must have 10"):
        uuid7(0, bytes(size))


def test_the_first_and_the_last_millisecond_fit() -> None:
    assert uuid7_ms(str(uuid7(0, bytes(RANDOM_BYTES)))) == 0
    assert uuid7_ms(str(uuid7(MS_MAX, bytes(RANDOM_BYTES)))) == MS_MAX


@pytest.mark.parametrize(
    "text",
    [
        "",
        "k",
        "8e03978e-40d5-43dd-bc93-6894a57f9324",  # version 4
        "017f22e2-79b0-7cc3-78c4-dc0c0c07398f",  # variant of NCS
        "017f22e2-79b0-7cc3-c8c4-dc0c0c07398f",  # variant of Microsoft
        "017f22e279b07cc398c4dc0c0c07398f",
        "{017f22e2-79b0-7cc3-98c4-dc0c0c07398f}",
        "urn:uuid:017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398f\n",
        " 017f22e2-79b0-7cc3-98c4-dc0c0c07398f",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398",
        "017f22e2-79b0-7cc3-98c4-dc0c0c07398g",
        "\u0660\u0661\u0667f22e2-79b0-7cc3-98c4-dc0c0c07398f",  # digits, but not ASCII ones
    ],
)
def test_any_other_text_has_no_time(text: str) -> None:
    assert uuid7_ms(text) is None
