"""Stored answers under the application's own keys: sealed, rotated, bound to their record, and never guessed at."""

from __future__ import annotations

import contextlib
import io
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from onefold import Keyring, Onefold
from onefold._http import wsgi
from onefold._idempotency.encryption import Sealer, UnreadableAnswer, peppers_of
from onefold.errors import ConfigurationError

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
CONTEXT = b"the digest of a record"


def ring(*names: str, write: str | None = None) -> Keyring:
    keys = {"old": OLD, "new": NEW}
    return Keyring({name: keys[name] for name in names}, write=write or names[0])


# --- the ring by itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [b"", b"a", bytes(range(256)) * 40])
def test_what_was_sealed_opens_again(plain: bytes) -> None:
    keyring = ring("old")
    assert keyring.unseal(keyring.seal(plain, CONTEXT), CONTEXT) == plain


def test_the_same_value_is_never_sealed_alike() -> None:
    keyring = ring("old")
    assert keyring.seal(b"secret", CONTEXT) != keyring.seal(b"secret", CONTEXT)


def test_after_a_rotation_old_values_still_open_and_new_ones_use_the_new_key() -> None:
    before = ring("old").seal(b"secret", CONTEXT)
    rotated = ring("old", "new", write="new")
    assert rotated.unseal(before, CONTEXT) == b"secret"
    after = rotated.seal(b"secret", CONTEXT)
    assert ring("new").unseal(after, CONTEXT) == b"secret"
    with pytest.raises(UnreadableAnswer, match="sealed with key 'new', which is not in the ring"):
        ring("old").unseal(after, CONTEXT)


def test_a_value_moved_to_another_record_does_not_open() -> None:
    keyring = ring("old")
    sealed = keyring.seal(b"secret", CONTEXT)
    with pytest.raises(UnreadableAnswer, match="does not open"):
        keyring.unseal(sealed, b"another digest")


def test_a_value_changed_in_any_byte_does_not_open() -> None:
    keyring = ring("old")
    sealed = keyring.seal(b"secret", CONTEXT)
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with pytest.raises(UnreadableAnswer):
            keyring.unseal(bytes(changed), CONTEXT)


def test_a_value_cut_short_does_not_open() -> None:
    keyring = ring("old")
    sealed = keyring.seal(b"secret", CONTEXT)
    for length in range(len(sealed)):
        with pytest.raises(UnreadableAnswer):
            keyring.unseal(sealed[:length], CONTEXT)


def test_another_key_of_the_same_name_does_not_open() -> None:
    sealed = ring("old").seal(b"secret", CONTEXT)
    with pytest.raises(UnreadableAnswer, match="does not open"):
        Keyring({"old": NEW}, write="old").unseal(sealed, CONTEXT)


@pytest.mark.parametrize("size", [0, 16, 24, 31, 33, 64])
def test_a_key_of_the_wrong_size_is_refused_by_name(size: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"key 'k' has {size} bytes; it must have 32"):
        Keyring({"k": bytes(size)}, write="k")


@pytest.mark.parametrize(
    ("keys", "write", "said"),
    [
        ({"old": OLD}, "new", r"write='new' names no key of the ring, which has \['old'\]"),
        ({}, "new", r"write='new' names no key of the ring"),
        ({"": OLD}, "", "must be 1 to 255 bytes long"),
        ({"k" * 256: OLD}, "k" * 256, "must be 1 to 255 bytes long"),
    ],
)
def test_a_ring_that_cannot_work_is_refused_at_start(keys: dict[str, bytes], write: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Keyring(keys, write=write)


# --- the ring in an application ------------------------------------------------------------------------------


@dataclass(slots=True)
class Stage:
    """A WSGI application over a SQLite file, restarted with other keys."""

    path: Path
    closing: contextlib.ExitStack
    calls: list[None] = field(default_factory=list)

    def serve(self, sealer: Sealer | None, **options: Any) -> Callable[[str], tuple[int, bytes, dict[str, str]]]:
        once = Onefold(self.path, principal=lambda request: "acme", sealer=sealer, **options)
        self.closing.callback(once.close)
        app = once.wsgi(self._handle, {"POST /orders": once.policy()})

        def post(key: str) -> tuple[int, bytes, dict[str, str]]:
            started: list[Any] = []

            def start_response(*start: Any) -> Callable[[bytes], object]:
                started.append(start)
                return started.append

            environ = {
                "REQUEST_METHOD": "POST",
                "PATH_INFO": "/orders",
                "HTTP_IDEMPOTENCY_KEY": key,
                "wsgi.input": io.BytesIO(),
            }
            body = b"".join(app(environ, start_response))
            return int(started[0][0][:3]), body, {name.lower(): value for name, value in started[0][1]}

        return post

    def _handle(self, environ: wsgi.Environ, start_response: wsgi.StartResponse) -> list[bytes]:
        self.calls.append(None)
        start_response("201 Created", [("Content-Type", "text/x-secret"), ("Location", "/secret-location")])
        return [b"secret body"]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as file:
            return file.execute(statement).fetchall()


@pytest.fixture
def stage(sqlite_path: Path) -> Iterator[Stage]:
    with contextlib.ExitStack() as closing:
        yield Stage(sqlite_path, closing)


ANSWER = (201, b"secret body")


def test_what_is_stored_holds_no_plain_text_and_replays_all_the_same(stage: Stage) -> None:
    post = stage.serve(ring("old"))
    assert post('"k"')[:2] == ANSWER
    status, body, headers = post('"k"')
    assert (status, body, headers["idempotent-replayed"], headers["location"]) == (*ANSWER, "true", "/secret-location")
    [row] = stage.sql("SELECT * FROM onefold_record")
    stored = b"".join(value for value in row if isinstance(value, bytes))
    assert b"secret" not in stored
    assert b"acme" not in stored
    with contextlib.closing(sqlite3.connect(stage.path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for planted in (
        b"text/x-secret",
        b"secret-location",
        b"secret body",
    ):  # a column of another table is called `secret`
        assert planted not in stage.path.read_bytes()


def test_without_a_ring_the_same_rows_are_plain(stage: Stage) -> None:
    stage.serve(None)('"k"')
    [(headers, body)] = stage.sql("SELECT headers, body FROM onefold_record")
    assert b"secret-location" in headers
    assert b"secret body" in body


def test_keys_are_rotated_without_losing_an_answer(stage: Stage) -> None:
    stage.serve(ring("old"))('"k"')
    post = stage.serve(ring("new", "old"))
    assert post('"k"')[:2] == ANSWER
    post('"l"')
    post = stage.serve(ring("new"))
    assert post('"l"')[2]["idempotent-replayed"] == "true"
    assert len(stage.calls) == 2


def test_a_key_that_left_the_ring_too_early_is_a_503_for_the_operator_and_never_a_second_run(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.serve(ring("old"))('"k"')
    status, body, _ = stage.serve(ring("new"))('"k"')
    assert (status, b"answer-unreadable" in body, b'"retryable": false' in body) == (503, True, True)
    assert "sealed with key 'old', which is not in the ring" in caplog.text
    assert b"'old'" not in body
    status, body, _ = stage.serve(None)('"k"')
    assert (status, b"answer-unreadable" in body) == (503, True)
    assert "pass sealer=Keyring(...)" in caplog.text
    assert len(stage.calls) == 1


def test_an_answer_moved_to_another_record_does_not_open(stage: Stage) -> None:
    post = stage.serve(ring("old"))
    post('"k"')
    post('"l"')
    [(digest, headers, body), *_] = stage.sql("SELECT hex(digest), hex(headers), hex(body) FROM onefold_record")
    stage.sql(f"UPDATE onefold_record SET headers = x'{headers}', body = x'{body}' WHERE digest <> x'{digest}'")
    assert sorted(post(key)[0] for key in ('"k"', '"l"')) == [201, 503]


def test_headers_and_body_cannot_change_places(stage: Stage) -> None:
    post = stage.serve(ring("old"))
    post('"k"')
    stage.sql("UPDATE onefold_record SET headers = body, body = headers")
    assert post('"k"')[0] == 503


def test_rows_from_before_the_ring_are_read_while_the_window_is_open_and_refused_else(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.serve(None)('"plain"')
    post = stage.serve(ring("old"), unsealed_answers=True)
    assert post('"plain"')[:2] == ANSWER
    post('"sealed"')
    post = stage.serve(ring("old"))
    assert post('"sealed"')[2]["idempotent-replayed"] == "true"
    status, body, _ = post('"plain"')
    assert (status, b"answer-unreadable" in body) == (503, True)
    assert "unsealed_answers=True" in caplog.text
    assert len(stage.calls) == 2


@pytest.mark.parametrize(
    "forgery",
    [
        # What was proven: a row in plain text, with a cookie.
        "headers = CAST(x'00' || 'set-cookie:session=evil' AS BLOB), body = CAST(x'00' || 'forged' AS BLOB)",
        "body = CAST(x'00' || 'forged' AS BLOB)",
        "headers = CAST(x'00' || 'location:https://evil.test' AS BLOB)",
        "status = 500",
        "operation = 'POST /other'",
        "body = NULL",
        "headers = (SELECT headers FROM onefold_record AS other WHERE other.digest <> onefold_record.digest)",
        "headers = CAST(x'01' || substr(headers, 2) AS BLOB), body = CAST(x'01' || substr(body, 2) AS BLOB)",
        "headers = CAST(x'01' || substr(headers, 2) AS BLOB), body = CAST(x'01' || substr(body, 2) AS BLOB), "
        "schema_version = 1",
        "schema_version = 1",
    ],
)
def test_a_row_that_was_edited_is_never_replayed(stage: Stage, forgery: str) -> None:
    post = stage.serve(ring("old"))
    post('"other"')
    [(other,)] = stage.sql("SELECT hex(digest) FROM onefold_record")
    post('"k"')
    stage.sql(f"UPDATE onefold_record SET {forgery} WHERE digest <> x'{other}'")
    status, body, headers = post('"k"')
    if forgery == "schema_version = 1":  # means nothing by itself: what was sealed opens, and is what was sealed
        assert (status, body) == ANSWER
        return
    assert (status, b"answer-unreadable" in body, "set-cookie" in headers) == (503, True, False)
    assert len(stage.calls) == 2


def test_headers_that_are_not_kept_are_not_replayed_either(stage: Stage) -> None:
    post = stage.serve(None)
    post('"k"')
    stage.sql(
        "UPDATE onefold_record SET headers = CAST(headers || x'0d0a' || 'set-cookie:session=evil' || x'0d0a' "
        "|| 'x-token:evil' AS BLOB)"
    )
    status, _, headers = post('"k"')
    assert (status, headers["location"]) == (201, "/secret-location")
    assert not {"set-cookie", "x-token"} & headers.keys()


def test_a_sealer_of_the_applications_own_may_have_peppers_and_wrong_ones_are_refused() -> None:
    class Own:
        peppers = (b"short",)

    with pytest.raises(ConfigurationError, match=r"peppers of .*Own must be a tuple of 16 to 64 bytes"):
        peppers_of(cast("Sealer", Own()))
    assert peppers_of(None) == ()
    assert peppers_of(ring("old", "new", write="new"))[0] == peppers_of(ring("new"))[0]


def test_a_row_in_a_form_of_the_future_is_refused_and_not_served_as_garbage(stage: Stage) -> None:
    post = stage.serve(None)
    post('"k"')
    stage.sql("UPDATE onefold_record SET body = CAST(x'07' || substr(body, 2) AS BLOB)")
    status, body, _ = post('"k"')
    assert (status, b"answer-unreadable" in body) == (503, True)
