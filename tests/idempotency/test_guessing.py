"""Whoever reads a record learns nothing of the request: neither its key nor, by trying, its body."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from onefold import Keyring
from onefold._http.request import Request
from onefold._http.request_identity import Naming, make_ask
from onefold._http.route_policy import Policy, Route, single_principal
from onefold._idempotency.encryption import peppers_of
from onefold._idempotency.fingerprint import RequestContent, earlier_fingerprint, fingerprint
from onefold._idempotency.model import Ask, Record, Scope
from onefold.policies import canonical_json, raw_bytes

#: BIN and last four are known; what is between is guessed.
CARD = "4242420000004242"
GUESSES = [f"424242{middle:06}4242" for middle in range(50)]
ROUTE = Route("/cards/{id}", Policy(principal=single_principal))
SCOPE = Scope("single", "POST /cards/{}")


def body_of(card: str) -> bytes:
    return b'{"card": "%b"}' % card.encode()


def ask(key: str, naming: Naming, card: str = CARD) -> Ask:
    request = Request("POST", "/cards/7", b"", ((b"content-type", b"application/json"),))
    return make_ask(request, ROUTE, naming, principal="single", key=key, key_ms=None, body=body_of(card))


def made_from(stored: Ask, keys: list[bytes]) -> Iterator[str]:
    """The guesses that one of these keys, under any formula onefold ever had, confirms."""
    for guess, key, formula, strategy, values in product(
        GUESSES, keys, (fingerprint, earlier_fingerprint), (canonical_json, raw_bytes), (None, ("7",))
    ):
        content = RequestContent("/cards/7", b"", "application/json", body_of(guess), b"", values)
        if formula(content, strategy, key=key)[:16] == stored.fingerprint[:16]:
            yield guess


def test_a_body_cannot_be_guessed_from_what_is_stored() -> None:
    stored = ask("0192f0c1-7f3a-7b6e-8c51-3d2a9e4b5f60", Naming())
    columns = [stored.digest, stored.fingerprint[:16], stored.digest + stored.fingerprint[:16], *stored.earlier]
    assert not list(made_from(stored, columns))
    # The control: with the key that is stored nowhere, the guess is confirmed.
    derived = SCOPE.fingerprint_key("0192f0c1-7f3a-7b6e-8c51-3d2a9e4b5f60")
    assert list(made_from(stored, [derived])) == [CARD]
    assert derived not in columns


def test_a_weak_client_key_does_not_help_where_there_is_a_ring() -> None:
    weak = [SCOPE.fingerprint_key(str(number)) for number in range(20)]
    assert list(made_from(ask("17", Naming()), weak)) == [CARD]
    ring = Naming(peppers=peppers_of(Keyring({"a": b"k" * 32}, write="a")))
    assert not list(made_from(ask("17", ring), weak))


def record(stored: Ask) -> Record:
    return Record(stored.digest, stored.fingerprint, stored.operation, 2, 201, b"\0", b"\0")


@pytest.mark.parametrize("before", [(), ("a",), ("b", "a")])
@pytest.mark.parametrize("after", [("a",), ("b", "a"), ("a", "b")])
def test_a_retry_is_known_whichever_key_of_the_ring_its_record_was_made_with(
    before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    def naming(names: tuple[str, ...]) -> Naming:
        keys = {name: name.encode() * 32 for name in names}
        return Naming(peppers=peppers_of(Keyring(keys, write=names[0]) if names else None))

    stored = ask("k", naming(before))
    retry, other = ask("k", naming(after)), ask("k", naming(after), GUESSES[7])
    assert retry.same is not None
    assert other.same is not None
    known = set(before) <= set(after)
    assert (retry.same(record(stored)), other.same(record(stored))) == (known, False)
    assert retry.request_locks == stored.request_locks, "also while it is in flight"
    assert retry.request_locks[0] != other.request_locks[0]
